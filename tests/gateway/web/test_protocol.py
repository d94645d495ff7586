"""HTTP on the socket itself."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web.protocol import MAX_HEAD_BYTES
from tests.pictures import encode, noise
from tests.servers import metric, running_gateway

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


def wait_until(fact: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.02)


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


def test_a_head_is_bounded_however_it_arrives(client: httpx.Client) -> None:
    """All at one time as well as in pieces, in one header as well as in many."""
    for headers in (b"X: " + b"a" * 70_000 + b"\r\n", b"X: a\r\n" * 20_000):
        answer = exchange(client, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"are over 65536 bytes" in answer
    fits = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * 60_000 + b"\r\n\r\n"
    assert exchange(client, fits).startswith(b"HTTP/1.1 200 ")


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


@pytest.mark.parametrize("how", ["close", "reset", "a timeout of the client"])
def test_the_work_for_a_caller_that_has_left_is_cancelled(
    own_client: httpx.Client, fake: FakeTriton, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its places are free again long before the deadline, and nothing is logged as a fault."""
    own_client.get("/readyz")
    fake.delay = 60
    if how == "a timeout of the client":
        with pytest.raises(httpx.ReadTimeout):
            own_client.post("/v1/classify", content=PICTURE, timeout=0.2)
    else:
        with connect(own_client) as connection:
            connection.sendall(POST + b"\r\n" + PICTURE)
            wait_until(lambda: metric(own_client, "tidegate_in_flight_images") == 1)
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: metric(own_client, "tidegate_in_flight_images") == 0, seconds=5)
    wait_until(lambda: metric(own_client, "tidegate_http_requests_total", status="499") >= 1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_callers_that_leave_with_the_last_byte(own_client: httpx.Client, fake: FakeTriton) -> None:
    """The body and the end may be seen in one go; neither then may the end be overlooked."""
    own_client.get("/readyz")
    fake.delay = 60
    for _ in range(40):
        connection = connect(own_client)
        connection.sendall(POST + b"\r\n" + PICTURE)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    wait_until(lambda: metric(own_client, "tidegate_in_flight_images") == 0, seconds=5)
    time.sleep(0.1)
    assert metric(own_client, "tidegate_in_flight_images") == 0


def test_a_caller_that_leaves_its_queue_of_requests(
    own_client: httpx.Client, fake: FakeTriton, caplog: pytest.LogCaptureFixture
) -> None:
    """What stood behind the request in work is not begun, and is no fault."""
    own_client.get("/readyz")
    fake.delay = 60
    with connect(own_client) as connection:
        connection.sendall((POST + b"\r\n" + PICTURE) * 5)
        wait_until(lambda: metric(own_client, "tidegate_in_flight_images") == 1)
    wait_until(lambda: metric(own_client, "tidegate_in_flight_images") == 0, seconds=5)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_caller_that_listens_for_long_gets_its_answer(own_client: httpx.Client, fake: FakeTriton) -> None:
    """It may see 100 Continue before it, as anybody may; then the answer, and the end."""
    own_client.get("/readyz")
    fake.delay = 1.5
    with connect(own_client) as connection:
        connection.sendall(POST + b"\r\n" + PICTURE)
        connection.shutdown(socket.SHUT_WR)
        answer = everything(connection)
    interim, _, final = answer.rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert interim
    assert final.startswith(b"HTTP/1.1 200 ")


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
        b"G\xc3\x89T / HTTP/1.1\r\n\r\n",
        b"BREW / HTTP/2.0\r\n\r\n",
        b"BREW / HTTP/1.1\n\n",
        b"BREW HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem_document(client: httpx.Client, data: bytes) -> None:
    """Garbage, TLS, other protocols: 400 with our words, an id and timings, then the connection closes."""
    head, _, body = exchange(client, data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    problem = json.loads(body)
    assert problem["code"] == "malformed_request"
    assert b"x-request-id: " + problem["request_id"].encode() in head
    assert b"server-timing: total;dur=" in head


@pytest.mark.parametrize(
    "method", ["BREW", "get", "Get", "GETS", "PUTT", "SETUP", "M-1.x", "CONNECT", "TRACE", "QUERY"]
)
@pytest.mark.parametrize("cut", [0, 1, 2, 8])
def test_a_method_that_nobody_takes(client: httpx.Client, method: str, cut: int) -> None:
    """Known to the parser or not, and wherever the network cuts it: 405, and which methods there are."""
    data = f"{method} /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    with connect(client) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(data[:cut])
        time.sleep(0.01 if cut else 0)
        connection.sendall(data[cut:])
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert json.loads(body)["code"] == "method_not_allowed"
    assert b"\r\nallow: GET, HEAD" in head


def test_methods_make_no_series(client: httpx.Client) -> None:
    """500 methods that are none leave the metrics as long as they were."""
    client.get("/metrics")
    before = client.get("/metrics").text.count("\n")
    for i in range(500):
        assert client.request(f"M{i}", f"/v1/models/{i}").status_code == 405
    assert client.get("/metrics").text.count("\n") == before


def test_an_unknown_method_behind_another_request(client: httpx.Client) -> None:
    """The whole request before it is answered; then the connection closes."""
    answer = exchange(client, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nBREW / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3, 3",
        "Content-Length: -3",
        "Content-Length: +3",
        "Content-Length: 0x3",
        "Content-Length:",
        "Content-Length : 3",
        "Content-Length: 99999999999999999999999",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "X: a\r\n b\r\nContent-Length: 3",
        "X: a\0b\r\nContent-Length: 3",
        "X\r\nContent-Length: 3",
        "X: a\nContent-Length: 3",
    ],
)
def test_a_body_whose_end_is_doubtful_is_refused(client: httpx.Client, headers: str) -> None:
    """Two proxies must never see two requests where we see one: 400, nothing after it is answered, and the end."""
    smuggled = b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = exchange(client, b"POST /v1/classify HTTP/1.1\r\nHost: x\r\n" + headers.encode() + b"\r\n\r\n" + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"x-request-id: ") == 1
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Length: 18446744073709551615", 413),
        ("Content-Length: 99999999999", 413),
        ("Transfer-Encoding: gzip, chunked", 415),
    ],
)
def test_bodies_that_are_not_taken(client: httpx.Client, headers: str, status: int) -> None:
    """A body far over the limit, or packed for the way, is refused by its headers."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{headers}\r\n\r\n"
    assert exchange(client, head.encode()).startswith(b"HTTP/1.1 %d " % status)


def test_a_caller_that_waits_is_told_to_go_on(client: httpx.Client) -> None:
    """curl asks before it sends a megabyte."""
    with connect(client) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(PICTURE)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("line", "header", "status"),
    [
        ("POST /v1/classify", "Content-Encoding: gzip", 415),
        ("POST /v1/classify", "Content-Type: image/png\r\nContent-Type: text/plain", 400),
        ("POST /nowhere", "X: y", 404),
        ("PUT /v1/classify", "X: y", 405),
    ],
)
def test_a_caller_that_waits_is_refused_before_its_body(
    client: httpx.Client, line: str, header: str, status: int
) -> None:
    """It is never told to go on, and the connection closes, for the body may come all the same."""
    head = f"{line} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 500\r\n{header}\r\n\r\n"
    answer = exchange(client, head.encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer


def test_pipelined_requests_are_answered_in_order(client: httpx.Client) -> None:
    """Three requests in one packet: three answers, each in its turn."""
    answer = exchange(
        client,
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        + POST
        + b"\r\n"
        + PICTURE
        + b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    )
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404"]


def test_head_is_get_without_a_body(client: httpx.Client) -> None:
    """Load balancers ask with HEAD."""
    for path in ("/livez", "/readyz", "/", "/v1/models"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/v1/classify").status_code == 405
