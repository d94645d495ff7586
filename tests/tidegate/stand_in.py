"""A small real HTTP server that speaks the contract of `/v1/embed`, and does as a test tells it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

BAD = b"no image"
"""A file that begins like this is no image to the stand-in."""


def features(content: bytes, dim: int = 4, *, unit: bool = False) -> NDArray[np.float32]:
    """FP32 `[dim]` of a file, which depends on nothing but its bytes; of length 1 with `unit`."""
    seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    values = np.random.default_rng(seed).random(dim, dtype=np.float32)
    return values / np.linalg.norm(values) if unit else values


@dataclass(frozen=True)
class Request:
    """What came, and when, in monotonic seconds."""

    path: str
    headers: Mapping[str, str]
    fields: Mapping[str, str]
    files: tuple[bytes, ...]
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Reply:
    """An answer other than the right one; a status of 0 breaks the connection."""

    status: int
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


class StandIn:
    """The server: `instead` may answer in its place, `requests` and `images` say what came.

    Unless it `obeys` it does not know `normalize`.
    A request whose number `hold_from` is reached waits for `go`; `held` is set when one does.
    """

    def __init__(self, dim: int = 4) -> None:
        self.dim = dim
        self.model, self.version = "embedder", "1"
        self.instead: Callable[[Request], Reply | None] = lambda request: None
        self.ready = True
        self.numbers = False
        self.obeys = True
        self.requests: list[Request] = []
        self.images: Counter[bytes] = Counter()
        self.at_once = self.most_at_once = 0
        self.hold_from: int | None = None
        self.held, self.go = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.url = ""

    def answer(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hold_from is not None and number >= self.hold_from:
                self.held.set()
                self.go.wait(60)
            reply = self.instead(request)
            if reply is not None:
                return reply
            with self._lock:
                self.images.update(request.files)
            return self._right(request)
        finally:
            with self._lock:
                self.at_once -= 1

    def _right(self, request: Request) -> Reply:
        results = [
            {"index": i, "filename": str(i), **self._result(file, request)} for i, file in enumerate(request.files)
        ]
        if all(result["status"] == "error" for result in results):
            problem = {"status": 422, "code": "no_usable_image", "detail": "None.", "results": results}
            return Reply(422, body=json.dumps(problem).encode())
        model = {"name": self.model, "version": self.version}
        body = {"request_id": "1", "model": model, "dim": self.dim, "results": results, "timings_ms": {}}
        return Reply(200, body=json.dumps(body).encode())

    def _result(self, file: bytes, request: Request) -> dict[str, Any]:
        if not file:
            return {"status": "error", "error": {"code": "empty_image", "message": "The file is empty."}}
        if file.startswith(BAD):
            return {"status": "error", "error": {"code": "unsupported_image", "message": "It is no image."}}
        unit = self.obeys and request.fields.get("normalize") == "true"
        values = features(file, self.dim, unit=unit).astype("<f4")
        if self.numbers:
            return {"status": "ok", "embedding": values.tolist()}
        return {"status": "ok", "embedding": base64.b64encode(values.tobytes()).decode()}


@contextmanager
def serving(stand_in: StandIn) -> Iterator[StandIn]:
    """It listens on a free port; `url` says where."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status = 503 if self.path == "/readyz" and not stand_in.ready else 200
            self._send(Reply(status, body=b"{}"))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            fields, files = _parts(body, self.headers["Content-Type"].partition("boundary=")[2])
            self._send(stand_in.answer(Request(self.path, dict(self.headers), fields, files)))

        def _send(self, reply: Reply) -> None:
            if not reply.status:
                self.close_connection = True
                return
            problem = {"status": reply.status, "code": reply.code, "detail": f"Because of {reply.code}."}
            body = json.dumps(problem).encode() if reply.body is None else reply.body
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Tests look at `requests`."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that are killed leave in the middle of something."""

    server = Server(("127.0.0.1", 0), Handler)
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _parts(body: bytes, boundary: str) -> tuple[dict[str, str], tuple[bytes, ...]]:
    mark = f"--{boundary}".encode()
    assert body.startswith(mark + b"\r\n")
    assert body.endswith(b"\r\n" + mark + b"--\r\n")
    fields, files = {}, []
    for part in body[len(mark) + 2 : -len(mark) - 6].split(b"\r\n" + mark + b"\r\n"):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="files"' in head:
            files.append(content)
        else:
            fields[head.decode().partition('name="')[2].partition('"')[0]] = content.decode()
    return fields, tuple(files)
