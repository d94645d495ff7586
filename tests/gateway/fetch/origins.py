"""Servers of images on this machine, good ones and bad ones, and what a fetch needs to find them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpcore
import pytest

from gateway.admission import Deadline
from gateway.errors import ItemProblem
from gateway.fetch import Address
from gateway.fetch.fetcher import Fetcher
from gateway.fetch.guard import Guard, parse_hosts, parse_networks
from gateway.images import ImageLimits
from tests.pictures import encode, noise

PICTURE = encode(noise(8, 8), "JPEG")
LARGE_PICTURE = encode(noise(64, 64), "BMP")
TRUST = httpcore.default_ssl_context()  # what a fetcher makes by itself, once: it takes a while
Answer = bytes | Callable[[socket.socket], None]


def answer(content: bytes = PICTURE, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """A whole answer of a server."""
    head = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(content) if length is None else length}"]
    return "".join(f"{line}\r\n" for line in [*head, ""]).encode() + content


def redirect(target: str, status: str = "302 Found") -> bytes:
    return answer(b"", f"Location: {target}", status=status)


def then_silence(begin: bytes) -> Answer:
    """Sends `begin`, and then nothing until the other side hangs up."""

    def handle(connection: socket.socket) -> None:
        connection.sendall(begin)
        connection.recv(1)

    return handle


def without_end(begin: bytes, piece: bytes) -> Answer:
    """Sends `begin`, and then `piece` again and again until the other side hangs up."""

    def handle(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(piece)

    return handle


class Origin(socketserver.ThreadingTCPServer):
    """Answers each path of `answers`; `asked` has the heads of all requests, `names` what TLS was asked for."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, answers: Mapping[str, Answer], host: str, tls: ssl.SSLContext | None) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.names: list[str | None] = []
        self.hung_up = threading.Event()
        self.tls = tls
        if tls:
            tls.sni_callback = lambda _, name, __: self.names.append(name)
        super().__init__((host, 0), None)  # type: ignore[arg-type]  # `finish_request` handles

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):
            if self.tls:
                request = self.tls.wrap_socket(request, server_side=True)
            with request:
                self._answer(request)
        self.hung_up.set()

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (received := connection.recv(65536)):
                return
            head += received
        self.asked.append(head.decode())
        reply = self.answers[head.split()[1].decode()]
        if callable(reply):
            reply(connection)
        else:
            connection.sendall(reply)

    def handle_error(self, request: Any, client_address: Any) -> None:
        raise AssertionError("an origin failed")


@contextmanager
def running(
    answers: Mapping[str, Answer], host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Origin]:
    """An origin on a port of its own."""
    with Origin(answers, host, tls) as origin:
        thread = threading.Thread(target=origin.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield origin
        finally:
            origin.shutdown()
            thread.join()


@contextmanager
def nobody_answers() -> Iterator[int]:
    """A port of this machine where connections are made, and then nothing happens."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield door.getsockname()[1]


@contextmanager
def nobody_comes() -> Iterator[int]:
    """A port of this machine on which, until the end, nobody may have knocked."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as door:
        yield door.getsockname()[1]
        door.setblocking(False)
        with pytest.raises(BlockingIOError):
            door.accept()


class Names:
    """A resolver that knows `addresses`; `asked` has the names it was asked for. It stands in for DNS alone."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = {name.replace("_", "."): list(found) for name, found in addresses.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        return self.addresses.get(host, [])


class Detour(httpcore.AsyncNetworkBackend):
    """A network in which every address leads to one port of this machine; `dialled` has those that were wanted."""

    def __init__(self, port: int, dead: Sequence[str] = ()) -> None:
        self.port = port
        self.dead = dead
        self.dialled: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        if host in self.dead:
            raise httpcore.ConnectError("no route")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.port)


def fetcher(hosts: str = "", networks: str = "127.0.0.0/8", **options: Any) -> Fetcher:
    """A fetcher that may fetch from this machine, where `hosts` names the port."""
    kept: dict[str, Any] = {
        "max_bytes": 1_000_000,
        "timeout_s": 20.0,
        "max_redirects": 3,
        "ssl_context": TRUST,
        **options,
    }
    guard = Guard(parse_hosts(hosts), parse_networks(networks))
    return Fetcher(guard, ImageLimits(kept.pop("max_file_bytes", 100_000), 1_000_000), **kept)


def fetch(
    one: Fetcher, *urls: str, grow: Callable[[int], None] = lambda size: None, seconds: float = 30
) -> list[bytes | ItemProblem]:
    """What becomes of `urls` in one request."""
    return asyncio.run(one.fetch([Address(url) for url in urls], Deadline.after(seconds), grow))


def code(content: bytes | ItemProblem) -> str:
    return content.code if isinstance(content, ItemProblem) else "ok"


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A certificate for `name` that signs itself: what its server uses, and what a client that trusts it uses."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("needs the command openssl")
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, key)
    return server, ssl.create_default_context(cafile=str(pem))
