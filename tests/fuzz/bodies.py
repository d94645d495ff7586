"""`gateway.web.body.read_upload` without a server: a body in chunks goes in, an upload or an error's code comes out."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from gateway.errors import RequestError
from gateway.settings import Settings
from gateway.web.body import Upload, read_upload
from gateway.web.schemas import ClassifyRequest

SETTINGS = Settings(max_body_bytes=20_000, max_file_bytes=2_000, max_images=5)

_loop = asyncio.new_event_loop()


def read(chunks: Sequence[bytes], content_type: str) -> Upload | str:
    """What the gateway makes of the body; nothing but a `RequestError` is an outcome."""
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})
    told = 0

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    def grow(size: int) -> None:
        nonlocal told
        told += size

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/classify",
        "query_string": b"",
        "headers": [(b"content-type", content_type.encode("latin-1"))],
        "state": {},
    }
    try:
        upload = _loop.run_until_complete(read_upload(Request(scope, receive), SETTINGS, grow, ClassifyRequest))
    except RequestError as error:
        return error.code
    kept = [len(file.content) for file in upload.files if isinstance(file.content, bytes)]
    assert 0 < len(upload.files) <= SETTINGS.max_images
    assert sum(kept) <= told <= SETTINGS.max_body_bytes
    return upload


def cut_up(body: bytes) -> list[list[bytes]]:
    """The body in pieces, as a network might deliver it: whole, in about twenty pieces, byte by byte if it is short."""
    rng = random.Random(zlib.crc32(body))
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((1, 4, 20))))
    ways = [[body], [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]]
    if len(body) < 300 and rng.random() < 0.2:
        ways.append([body[i : i + 1] for i in range(len(body))])
    return ways
