"""`python -m benchmarks.tracing`: what traces cost the gateway, in processor time for each request of one photo.

The application is called without a socket, in front of a Triton that answers at once, so that little else is
measured. Off, unsampled and sampled take turns in one process; a collector in another takes the spans. What the
exporter's thread uses is counted too.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
import timeit
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from fastapi import FastAPI

from benchmarks.__main__ import ROOT
from gateway.app import create_app
from gateway.observe.stages import Stage
from gateway.settings import Settings
from gateway.triton import Answer
from gateway.triton.fake import FakeTriton

PHOTO = (ROOT / "examples" / "photos" / "cat.jpg").read_bytes()


class QuickTriton(FakeTriton):
    """Computes an answer once."""

    _answer: Answer | None = None

    async def infer(self, *args: Any, **options: Any) -> Answer:
        if options.get("top_classes"):
            return await super().infer(*args, **options)
        self._answer = self._answer or await super().infer(*args, **options)
        return self._answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=250, help="in each round")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    stage = min(timeit.repeat(_stage, number=1000, repeat=200)) / 1000
    print(f"one stage, traces off: {stage * 1e9:.0f} ns\n")
    with collector() as endpoint:
        variants = {
            "off": Settings(),
            "on, request not sampled": Settings(traces_endpoint=endpoint, traces_sample_ratio=0),
            "on, request sampled": Settings(traces_endpoint=endpoint, traces_sample_ratio=1),
        }
        costs = asyncio.run(measure(variants, options.rounds, options.requests))
    print("| traces | CPU µs a request, median | more than off |\n| --- | --- | --- |")
    for name, each in costs.items():
        more = statistics.median(a - b for a, b in zip(each, costs["off"], strict=True))
        print(f"| {name} | {statistics.median(each):.0f} | {more:.0f} |")


def _stage() -> None:
    with Stage("read") as read:
        read.note({"tidegate.images": 1})


async def measure(variants: dict[str, Settings], rounds: int, requests: int) -> dict[str, list[float]]:
    """Microseconds a request of every variant's every round."""
    costs: dict[str, list[float]] = {name: [] for name in variants}
    async with AsyncExitStack() as stack:
        apps = {}
        for name, settings in variants.items():
            app = create_app(settings, QuickTriton())
            state = await stack.enter_async_context(app.router.lifespan_context(app))
            apps[name] = asker(app, dict(state or {}))
            await apps[name](requests)
        for _ in range(rounds):
            for name, ask in apps.items():
                start = time.process_time()
                await ask(requests)
                costs[name].append((time.process_time() - start) / requests * 1e6)
    return costs


def asker(app: FastAPI, state: dict[str, Any]) -> Callable[[int], Awaitable[None]]:
    """Sends the photo so many times, one after the other, and waits until the spans are sent too."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/classify",
        "raw_path": b"/v1/classify",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"image/jpeg")],
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": PHOTO, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200

    async def ask(count: int) -> None:
        for _ in range(count):
            await app({**scope, "state": {**state}}, receive, send)  # type: ignore[arg-type]  # plain dicts
        if state["tracing"] is not None:
            state["tracing"]._provider.force_flush()

    return ask


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _collect(parent: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    parent.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """The address of a collector in another process, which forgets what it gets."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
