"""Bodies → files and parameters."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.errors import ItemProblem
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web.body import decode_base64
from tests.pictures import encode, noise
from tests.servers import running_gateway

PICTURE = encode(noise(8, 8), "JPEG")
LARGE = PICTURE + bytes(1_500_000)
FORM = "multipart/form-data; boundary=xBx"


def part(
    content: bytes, disposition: bytes = b'; filename="a.jpg"', name: bytes = b"files", head: bytes = b""
) -> bytes:
    return (
        b'--xBx\r\nContent-Disposition: form-data; name="' + name + b'"' + disposition + b"\r\n" + head + b"\r\n"
    ) + (content + b"\r\n")


def form(client: httpx.Client, *parts: bytes, end: bytes = b"--xBx--\r\n", kind: str = FORM) -> httpx.Response:
    return client.post("/v1/classify", content=b"".join(parts) + end, headers={"content-type": kind})


def outcomes(answer: httpx.Response) -> list[str]:
    return [r["error"]["code"] if r["status"] == "error" else "ok" for r in answer.json()["results"]]


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        (b"", None),
        (b'; filename=""', None),
        (b'; filename="cat.jpg"', "cat.jpg"),
        (b"; filename=cat.jpg", "cat.jpg"),
        (b"; filename*=UTF-8''caf%C3%A9.jpg", "café.jpg"),
        (b"; filename=\"x.jpg\"; filename*=utf-8'en'%E2%82%AC.jpg", "€.jpg"),
        ('; filename="日本.jpg"'.encode(), "日本.jpg"),
        (b'; filename="caf\xe9.jpg"', "caf\N{REPLACEMENT CHARACTER}.jpg"),
        (b'; filename="../../etc/passwd"', "passwd"),
        (b'; filename="C:\\\\photos\\\\cat.jpg"', "cat.jpg"),
        (b'; filename="a\x00b\x1b[31m.jpg"', "ab[31m.jpg"),
        (b'; filename="a\rb.jpg"', "ab.jpg"),
        (b'; filename="' + b"x" * 1000 + b'.jpg"', "x" * 255),
    ],
)
@pytest.mark.parametrize("content", [PICTURE, LARGE], ids=["small", "large"])
def test_a_part_is_an_image_whatever_it_is_called(
    client: httpx.Client, disposition: bytes, filename: str | None, content: bytes
) -> None:
    """No file name, an empty, an odd or a hostile one: classified, the name null or cleaned, for any size."""
    answer = form(client, part(content, disposition))
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    assert (result["status"], result["filename"]) == ("ok", filename)


@pytest.mark.parametrize("name", [b"files", b"file", b"files[]", b"image", b"images"])
def test_names_of_image_parts(client: httpx.Client, name: bytes) -> None:
    """The five names of the contract are one."""
    assert outcomes(form(client, part(PICTURE, name=name))) == ["ok"]


@pytest.mark.parametrize("head", [b"", b"Content-Type: text/plain\r\n", b"content-type: image/heic\r\nX-Odd: 1\r\n"])
def test_the_declared_type_does_not_matter(client: httpx.Client, head: bytes) -> None:
    """Bytes decide."""
    assert outcomes(form(client, part(PICTURE, head=head))) == ["ok"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part(PICTURE), part(b"junk"), part(PICTURE)], ["ok", "unsupported_image", "ok"]),
        ([part(b"", b'; filename="a.jpg"'), part(PICTURE)], ["empty_image", "ok"]),
        ([part(b"", b""), part(PICTURE)], ["empty_image", "ok"]),
        ([part(PICTURE, b'; filename="a"')] * 3, ["ok", "ok", "ok"]),
    ],
)
def test_one_result_for_every_part_in_order(client: httpx.Client, parts: list[bytes], expected: list[str]) -> None:
    """Bad, empty and repeated parts each keep their place."""
    assert outcomes(form(client, *parts)) == expected


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], "missing_image"),
        ([part(b"", b"")], "missing_image"),
        ([part(b"", b'; filename=""')], "missing_image"),
        ([part(b"2", b"", b"top_k")], "missing_image"),
        ([part(PICTURE, name=b"photo")], "missing_image"),
        ([part(PICTURE), part(PICTURE, name=b"photo")], "invalid_parameter"),
        ([part(PICTURE), part(b"9" * 2000, b"", b"top_k")], "invalid_parameter"),
    ],
)
def test_forms_without_a_usable_part(client: httpx.Client, parts: list[bytes], code: str) -> None:
    """Nothing chosen is `missing_image`; a file under a name that we do not know is not dropped without a word."""
    answer = form(client, *parts)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (part(PICTURE) + b"--xBx--\r\n", "multipart/form-data"),
        (part(PICTURE), FORM),
        (part(PICTURE)[:-40], FORM),
        (part(PICTURE) + b"--xBx", FORM),
        (b"--other\r\n\r\nx\r\n--other--\r\n", FORM),
        (b'{"images": []}', FORM),
        (b"", FORM),
        (b"--xBx\r\n" + b"A: " + b"x" * 100_000 + b"\r\n\r\nx\r\n--xBx--\r\n", FORM),
        (b'{"images": [{"data": ', "application/json"),
        (PICTURE, "application/json"),
        (b"", "application/json"),
        (b'{"images": [], "images', "application/json; charset=utf-8"),
    ],
)
def test_broken_bodies_are_malformed(client: httpx.Client, content: bytes, kind: str) -> None:
    """A body that was cut, or is not what its type says, is refused as a whole."""
    answer = client.post("/v1/classify", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request"), answer.text


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1000])
def test_any_chunking_gives_the_same_files(client: httpx.Client, chunk: int) -> None:
    """Boundaries, headers and files may be cut at any byte by the network."""
    files = [encode(noise(8, 8, seed), "JPEG", quality=30) for seed in range(2)]
    body = b"".join(part(file) for file in files) + b"--xBx--\r\n"
    chunks = (body[i : i + chunk] for i in range(0, len(body), chunk))
    answer = client.post("/v1/classify", params={"top_k": 10}, content=chunks, headers={"content-type": FORM})
    for file, result in zip(files, answer.json()["results"], strict=True):
        probabilities = {p["class_id"]: p["probability"] for p in result["predictions"]}
        assert probabilities == dict(enumerate(FakeTriton().probabilities(file).tolist()))


@pytest.mark.parametrize(
    "content",
    [
        b"a preamble\r\n" + part(PICTURE) + b"--xBx--\r\n",
        b"x" + part(PICTURE) + b"--xBx--\r\n",
        part(PICTURE, head=b"X-Odd: one\ntwo\r\n") + b"--xBx--\r\n",
        part(PICTURE, head=b"\nX-Odd: one\r\n") + b"--xBx--\r\n",
    ],
)
@pytest.mark.parametrize("chunk", [1, 10, 1_000_000])
def test_what_is_judged_by_its_chunks_is_refused(client: httpx.Client, content: bytes, chunk: int) -> None:
    """Bytes before the first boundary, and bare line feeds in a header: malformed however the network cuts them."""
    chunks = (content[i : i + chunk] for i in range(0, len(content), chunk))
    answer = client.post("/v1/classify", content=chunks, headers={"content-type": FORM})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_request")


def test_a_line_break_before_the_first_boundary_is_nothing(client: httpx.Client) -> None:
    """Some clients send one."""
    assert outcomes(form(client, b"\r\n", part(PICTURE))) == ["ok"]


@pytest.fixture
def small() -> Iterator[httpx.Client]:
    """A gateway with small caps."""
    settings = Settings(max_body_bytes=100_000, max_file_bytes=20_000, max_images=3, body_idle_timeout_s=0.3)
    with running_gateway(settings, FakeTriton()) as client:
        yield client


def test_caps(small: httpx.Client) -> None:
    """A file over its cap is one item's error; a body or a number over its cap is the request's."""
    answer = form(small, part(PICTURE + bytes(30_000)), part(PICTURE))
    assert outcomes(answer) == ["file_too_large", "ok"]
    answer = form(small, *[part(PICTURE)] * 4)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_images")
    assert "3" in answer.json()["detail"]
    answer = small.post("/v1/classify", json={"images": [{"data": "AA=="}] * 4})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_images")
    answer = small.post("/v1/classify", content=bytes(100_001))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    answer = small.post("/v1/classify", content=iter([bytes(60_000)] * 2))
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert outcomes(form(small, *[part(PICTURE)] * 3)) == ["ok"] * 3


def test_silence_in_a_body_ends_it(small: httpx.Client) -> None:
    """A client that stops sending is told so, and its connection closed."""
    with socket.create_connection((small.base_url.host, small.base_url.port or 0), timeout=10) as connection:
        connection.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        answer = b""
        while received := connection.recv(65536):
            answer += received
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in answer


@pytest.mark.parametrize("encoding", ["gzip", "br", "x-unknown"])
def test_content_encodings_are_refused(client: httpx.Client, encoding: str) -> None:
    """A compressed body is refused before it is read as something else."""
    answer = client.post("/v1/classify", content=PICTURE, headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        ("multipart/form-data; boundary={}", "q"),
        ("multipart/form-data; boundary={}", "q" * 70),
        ("multipart/form-data; boundary={}", "q" * 71),
        ("multipart/form-data; boundary={}", "q" * 300),
        ('MULTIPART/Form-Data;Boundary="{}"', "x y"),
        ('multipart/form-data; charset=utf-8; boundary="{}"', "q"),
        ("multipart/form-data; boundary={}; charset=utf-8", "q"),
    ],
)
def test_ways_to_announce_a_form(client: httpx.Client, kind: str, boundary: str) -> None:
    """Case, quotes, more parameters and long boundaries do not matter."""
    body = part(PICTURE).replace(b"--xBx", b"--" + boundary.encode()) + b"--" + boundary.encode() + b"--\r\n"
    assert outcomes(form(client, body, end=b"", kind=kind.format(boundary))) == ["ok"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/json;"])
def test_ways_to_announce_json(client: httpx.Client, kind: str) -> None:
    """Case and parameters do not matter."""
    content = b'{"images": [{"data": "' + base64.b64encode(PICTURE) + b'"}]}'
    answer = client.post("/v1/classify", content=content, headers={"content-type": kind})
    assert outcomes(answer) == ["ok"]


@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "multipart/mixed; boundary=xBx", "text/json", "application/problem+json"],
)
def test_a_body_that_was_taken_for_an_image(client: httpx.Client, kind: str) -> None:
    """A picture of any declared type is a picture; for anything else the caller hears how to declare it."""
    assert outcomes(client.post("/v1/classify", content=PICTURE, headers={"content-type": kind})) == ["ok"]
    answer = client.post("/v1/classify", content=b"files=cat.jpg", headers={"content-type": kind})
    assert answer.json()["code"] == "no_usable_image"
    assert f"its Content-Type is {kind.partition(';')[0]!r}: send a form as" in answer.json()["detail"]
    assert "Content-Type" not in client.post("/v1/classify", content=b"x").json()["detail"]


def test_two_types(client: httpx.Client) -> None:
    """Which of two different types is meant is not guessed."""
    for second, status in (("image/png", 200), ("application/json", 400)):
        headers = [("content-type", "image/png"), ("content-type", second)]
        assert client.post("/v1/classify", content=PICTURE, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("encodings", "status"),
    [
        (["identity"], 200),
        ([""], 200),
        (["Identity, identity"], 200),
        (["identity, gzip"], 415),
        (["identity", "gzip"], 415),
    ],
)
def test_encodings_that_change_nothing(client: httpx.Client, encodings: list[str], status: int) -> None:
    """`identity` is no encoding; what stands beside it is not overlooked."""
    headers = [("content-encoding", encoding) for encoding in encodings]
    assert client.post("/v1/classify", content=PICTURE, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "missing_image"),
        ({"images": []}, "missing_image"),
        ({"images": [{}]}, "invalid_parameter"),
        ({"images": [{"data": "AA==", "url": "http://x"}]}, "invalid_parameter"),
        ({"images": [{"data": 5}]}, "invalid_parameter"),
        ({"images": "AA=="}, "invalid_parameter"),
        ([], "invalid_parameter"),
        ({"images": [{"data": "AA=="}], "topk": 3}, "invalid_parameter"),
        ({"images": [{"data": "AA=="}], "top_k": "3"}, "invalid_parameter"),
        ({"images": [{"data": "AA=="}], "threshold": 2}, "invalid_parameter"),
        ({"images": [{"data": "AA=="}], "threshold": "0.5"}, "invalid_parameter"),
        ({"images": [{"data": "AA=="}], "threshold": True}, "invalid_parameter"),
    ],
)
def test_json_of_another_shape(client: httpx.Client, document: Any, code: str) -> None:
    """JSON that does not fit is refused with the place where it does not."""
    answer = client.post("/v1/classify", json=document)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_json_items(client: httpx.Client) -> None:
    """Base64 that is none, nothing at all, and an address are errors of their item."""
    good = {"data": base64.b64encode(PICTURE).decode()}
    images = [{"data": "@@@"}, good, {"data": ""}, {"url": "http://127.0.0.1/x.jpg"}]
    answer = client.post("/v1/classify", json={"images": images})
    assert outcomes(answer) == ["invalid_base64", "ok", "empty_image", "url_forbidden"]


CONTENT = bytes(range(256)) + b"\xfb\xef\xbe\xff"


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(CONTENT).decode(),
        base64.b64encode(CONTENT).decode().rstrip("="),
        base64.urlsafe_b64encode(CONTENT).decode(),
        base64.urlsafe_b64encode(CONTENT).decode().rstrip("="),
        base64.encodebytes(CONTENT).decode(),
        base64.encodebytes(CONTENT).decode().replace("\n", "\r\n\t"),
        "data:image/jpeg;base64," + base64.b64encode(CONTENT).decode(),
        "DATA:;base64," + base64.b64encode(CONTENT).decode(),
    ],
)
def test_forms_of_base64(text: str) -> None:
    """All usual spellings mean the same bytes."""
    assert decode_base64(text) == CONTENT


@pytest.mark.parametrize("text", ["@@@@", "A", "AA=A", "data:image/png,AA==", "data:", "ÄÖ==", "AAAA\0", "AAAAA"])
def test_what_is_not_base64(text: str) -> None:
    """Anything else is an item error, never other bytes."""
    problem = decode_base64(text)
    assert isinstance(problem, ItemProblem)
    assert problem.code == "invalid_base64"
