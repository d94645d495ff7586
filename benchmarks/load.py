"""A load generator that costs little: prepared requests over plain sockets, as many at a time as asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a run measured: seconds for all, and for each request in the order of their ends."""

    seconds: float
    latencies: Sequence[float]
    failures: int


def post(path: str, body: bytes, content_type: str) -> bytes:
    """A whole HTTP/1.1 request."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def multipart(file: bytes) -> tuple[bytes, str]:
    """A form with one file, and its content type."""
    head = b'--xBx\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    return head + file + b"\r\n--xBx--\r\n", "multipart/form-data; boundary=xBx"


async def closed_loop(port: int, requests: Sequence[bytes], clients: int, total: int) -> Load:
    """`clients` connections to 127.0.0.1:`port` send `total` requests, each the next when it has its answer."""
    todo = iter(range(total))
    latencies: list[float] = []
    failures = 0

    async def client() -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in todo:
            start = time.perf_counter()
            writer.write(requests[i % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            at = lower.index(b"content-length:") + 15
            await reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
            failures += not head.startswith(b"HTTP/1.1 200")
            latencies.append(time.perf_counter() - start)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(time.perf_counter() - start, latencies, failures)
