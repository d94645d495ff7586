"""JSON: a document is read as it stands or refused; base64 means the very bytes that it says, or is an item's error."""

from __future__ import annotations

import base64
import json
import random
import re

from gateway.web.body import Upload, decode_base64
from tests.fuzz.bodies import SETTINGS, cut_up, read
from tests.fuzz.mutations import damaged, rearranged

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
TOKENS = (
    *(b'{"data": "', b'{"url": "http://x/"}', b'"}', b'"images": [', b'"top_k": ', b'"threshold": ', b'"model": '),
    *(b"null", b"true", b"1e999", b"-0", b"NaN", b"Infinity", b"9" * 30, b"9" * 4400, b"[" * 300, b'{"a":' * 300),
    *(b"\\u0000", b"\\ud800", b"\\", b"\\n", b"\xef\xbb\xbf", b"\xff", b" "),
    *(b"data:image/png;base64,", b"data:,", b"=", b"==", b"-", b"_"),
)


def seeds() -> list[bytes]:
    data = base64.b64encode(bytes(range(7, 70))).decode()
    safe = base64.urlsafe_b64encode(b"\xfb\xff\xfe" * 5).decode()
    spellings = [data, data.rstrip("="), safe, f"data:image/png;base64,{data}", data[:20] + "\r\n" + data[20:], ""]
    documents: list[object] = [
        {"images": [{"data": text} for text in spellings[:5]], "top_k": 3, "threshold": 0.5, "model": "ensemble_model"},
        {"images": [{"data": spellings[5]}, {"url": "http://127.0.0.1/x.jpg"}]},
        {"images": [{"data": data}] * 6},
        {"images": [], "top_k": 10**30, "threshold": 1e300},
        {"images": [{"data": "AA==", "url": "http://x"}, {}]},
        {"images": [{"data": "A" * 3000}]},
    ]
    return [json.dumps(document).encode() for document in documents]


def mutate(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        data = b",".join(rearranged(data.split(b","), rng))
    return damaged(data, rng, TOKENS) if rng.random() < 0.8 else data


def check(data: bytes) -> None:
    if len(data) > SETTINGS.max_body_bytes:
        assert isinstance(read([data], "application/json"), str)
        return
    whole, *others = (read(chunks, "application/json") for chunks in cut_up(data))
    assert all(other == whole for other in others)
    for text in re.findall(r'"data"\s*:\s*"([^"\\]*)"', data.decode("utf-8", "replace")):
        assert _bytes(decode_base64(text)) == _reference(text)
    if isinstance(whole, Upload):
        _check_against_json(json.loads(data), whole)


def _check_against_json(document: dict[str, object], upload: Upload) -> None:
    """The standard library reads the same document; the files are those that it names, in order."""
    images = document["images"]
    assert isinstance(images, list)
    assert len(images) == len(upload.files)
    for image, file in zip(images, upload.files, strict=True):
        assert file.filename is None
        if image.get("data") is not None:
            assert _bytes(file.content) == _reference(image["data"])
    for name in ("top_k", "threshold", "model"):
        assert (document.get(name) is None) == (name not in upload.parameters)


def _bytes(content: object) -> bytes | None:
    return content if isinstance(content, bytes) else None


def _reference(text: str) -> bytes | None:
    """Base64 by its definition, six bits after six bits; None for what is none."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            return None
    digits = re.sub("[ \t\r\n]", "", text).replace("-", "+").replace("_", "/").rstrip("=")
    if len(digits) % 4 == 1 or any(digit not in ALPHABET for digit in digits):
        return None
    bits = "".join(f"{ALPHABET.index(digit):06b}" for digit in digits)
    return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8))
