"""JSON → documents, or what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.errors import InvalidParameter, MalformedRequest
from gateway.web.documents import read_document
from gateway.web.schemas import ClassifyRequest

IMAGE = {"data": "AA=="}


@pytest.mark.parametrize(
    ("document", "detail"),
    [
        (None, "The document must be an object."),
        ([], "The document must be an object."),
        ({"images": IMAGE}, "images must be a list."),
        ({"images": [IMAGE, "AA=="]}, "images[1] must be an object."),
        ({"images": [IMAGE, IMAGE, IMAGE, {"data": 5}]}, "images[3].data must be a string."),
        ({"images": [{}]}, "images[0] must have either data or url."),
        ({"images": [{"data": "AA==", "url": "http://x"}]}, "images[0] must have either data or url."),
        ({"images": [{"date": "AA=="}]}, "images[0] has an unknown key 'date'; known are data, url."),
        ({"topk": 3}, "The document has an unknown key 'topk'; known are model, version, images, top_k, threshold."),
        ({"top_k": "5"}, "top_k must be a whole number, without quotes or a decimal point."),
        ({"top_k": 5.0}, "top_k must be a whole number, without quotes or a decimal point."),
        ({"top_k": 5.5}, "top_k must be a whole number, without quotes or a decimal point."),
        ({"top_k": True}, "top_k must be a whole number, without quotes or a decimal point."),
        ({"top_k": 0}, "top_k must be at least 1."),
        ({"threshold": "0.5"}, "threshold must be a number, without quotes."),
        ({"threshold": False}, "threshold must be a number, without quotes."),
        ({"threshold": -0.5}, "threshold must be at least 0."),
        ({"threshold": 2}, "threshold must be at most 1."),
        ({"model": 5}, "model must be a string."),
    ],
)
def test_another_shape(document: Any, detail: str) -> None:
    """The sentence says what is wrong, and where, in the caller's words."""
    with pytest.raises(InvalidParameter) as error:
        read_document(json.dumps(document).encode(), ClassifyRequest)
    assert error.value.detail == detail


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "it is empty"),
        (b'{"images": [', "line 1 column 12"),
        (b'{\n "images": []\n} more', "line 3 column 3"),
        (b"{'images': []}", "line 1 column 2"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"images": []}'.encode("utf-16"), "line 1 column 1"),
        (b'{"model": "caf\xe9"}', "line 1 column"),
        (b'{"model": "\\ud800"}', "line 1 column"),
        (b'{"top_k": ' + b"9" * 5000 + b"}", "line 1 column"),
        (b"[" * 100_000, "line 1 column"),
        (b'{"images":' * 100_000, "line 1 column"),
    ],
)
def test_no_json(content: bytes, detail: str) -> None:
    """What cannot be read is malformed, and the sentence says from where on."""
    with pytest.raises(MalformedRequest, match=detail):
        read_document(content, ClassifyRequest)


@pytest.mark.parametrize(
    "content",
    [
        b'{"top_k": 1, "top_k": 2}',
        b'{"images": [{"data": "AA==", "data": "AAA="}]}',
        b'{"model": "a", "\\u006dodel": "b"}',
    ],
)
def test_a_key_twice(content: bytes) -> None:
    """Neither value wins, at any depth."""
    with pytest.raises(InvalidParameter, match="stands twice"):
        read_document(content, ClassifyRequest)


@pytest.mark.parametrize(
    "content",
    [b'{"model": "a", "model": "a"}', rb'{"model": "\u0061"}', rb'{"model": "a", "images": [{"data": "\"\n"}]}'],
)
def test_what_only_looks_like_a_key_twice(content: bytes) -> None:
    """The same twice loses nothing; nor do quotes and escapes."""
    assert read_document(content, ClassifyRequest).model == "a"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"images": [{"data": "AA=="}], "threshold": 1e999}', "invalid_parameter"),
        (b'{"images": [{"data": "AA=="}], "threshold": NaN}', "invalid_parameter"),
        (b'{"images": [{"data": "AA=="}], "threshold": -Infinity}', "invalid_parameter"),
        (b'{"images": [{"data": "AA=="}], "top_k": ' + b"9" * 4000 + b"}", "invalid_parameter"),
        (b'{"' + b"k" * 10_000_000 + b'": 1}', "invalid_parameter"),
        (b'{"images": [' + b"{}," * 4_000_000 + b"{}]}", "too_many_images"),
        (b"[" + b"[]," * 4_000_000 + b"[]]", "too_many_images"),
        (b"{" + b",".join(b'"%d": 1' % i for i in range(500_000)) + b"}", "too_many_images"),
    ],
)
def test_documents_that_are_a_burden(client: httpx.Client, content: bytes, code: str) -> None:
    """Megabytes of nothing are refused before they cost memory and time: seconds of either would hit everyone."""
    answer = client.post("/v1/classify", content=content, headers={"content-type": "application/json"}, timeout=5)
    assert answer.json()["code"] == code
    assert len(answer.content) < 1000
