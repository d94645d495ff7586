"""HTTP on the socket itself."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web.protocol import MAX_HEAD_BYTES
from tests.pictures import encode, noise
from tests.servers import running_gateway

PICTURE = encode(noise(8, 8), "JPEG")
POST = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(PICTURE)


@pytest.fixture(scope="module")
def impatient() -> Iterator[httpx.Client]:
    """A gateway that waits a third of a second for heads, and for bodies that come slowly."""
    settings = Settings(head_timeout_s=0.3, body_idle_timeout_s=0.3, body_min_bytes_per_s=1000)
    with running_gateway(settings, FakeTriton()) as client:
        yield client


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=10)


def everything(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while received := connection.recv(65536):
            answer += received
    except ConnectionResetError:
        pass
    return answer


def exchange(client: httpx.Client, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    with connect(client) as connection:
        connection.sendall(data)
        return everything(connection)


@pytest.mark.parametrize(
    "start",
    [
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ",
        b"GET /",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: ",
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;x=",
    ],
    ids=["header", "url", "trailer", "chunk extension"],
)
def test_what_surrounds_a_body_is_bounded(client: httpx.Client, start: bytes) -> None:
    """An endless header, address, trailer or extension is refused after 64 KiB, not collected."""
    with connect(client) as connection:
        connection.sendall(start)
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):  # closed by the server
            while sent < 20 * MAX_HEAD_BYTES:
                sent += connection.send(b"a" * 8192)
                time.sleep(0.001)
    assert sent < 20 * MAX_HEAD_BYTES
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize("said", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(impatient: httpx.Client, said: bytes) -> None:
    """A client that connects and stops is closed; one that began a request is told why."""
    answer = exchange(impatient, said)
    assert answer == b"" if not said else answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_drips_ends(impatient: httpx.Client) -> None:
    """One byte at a time is no upload; silence need not be waited for."""
    with connect(impatient) as connection:
        connection.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(20):
            try:
                connection.sendall(b"a")
            except OSError:
                break
            time.sleep(0.05)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in answer


def test_a_refused_body_is_not_awaited_for_ever(client: httpx.Client) -> None:
    """A caller whose request was refused cannot hold the connection by going on one byte at a time."""
    with connect(client) as connection:
        connection.sendall(
            b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 400\r\n\r\n"
        )
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 399:
                sent += connection.send(b"a")
                time.sleep(0.05)
        assert sent < 399
    assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "wish",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    ],
)
def test_a_wish_to_upgrade_is_ignored(client: httpx.Client, wish: bytes) -> None:
    """curl --http2 and some Java clients ask for HTTP/2 with every request: they get their answer in HTTP/1.1."""
    with connect(client) as connection:
        connection.sendall(POST + wish + b"\r\n" + PICTURE[:50])
        time.sleep(0.05)
        connection.sendall(PICTURE[50:] + b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"predictions" in answer
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_a_caller_that_only_listens_gets_its_answer(client: httpx.Client) -> None:
    """A request may be followed by the end of what the caller has to say."""
    with connect(client) as connection:
        connection.sendall(POST + b"\r\n" + PICTURE)
        connection.shutdown(socket.SHUT_WR)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_garbage_after_a_request_does_not_cost_its_answer(client: httpx.Client) -> None:
    """A whole request is answered; then the connection closes."""
    answer = exchange(client, POST + b"\r\n" + PICTURE + b"GARBAGE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"predictions" in answer


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01",
        b"BREW /livez HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem_document(client: httpx.Client, data: bytes) -> None:
    """Garbage, TLS, unknown methods: 400 with our words and an id, then the connection closes."""
    head, _, body = exchange(client, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    problem = json.loads(body)
    assert problem["code"] == "malformed_request"
    assert b"x-request-id: " + problem["request_id"].encode() in head


def test_head_is_get_without_a_body(client: httpx.Client) -> None:
    """Load balancers ask with HEAD."""
    for path in ("/livez", "/readyz", "/", "/v1/models"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/v1/classify").status_code == 405
