"""What the chart's rolling updates rely on: gateways drain, find new Tritons, and leave those that end in time."""

from __future__ import annotations

import asyncio
import http.client
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.errors import TidegateError
from gateway.triton import client as triton_client
from gateway.triton.client import TritonClient
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from gateway.triton.tensors import CLASSIFICATION
from tests.gateway.triton.test_contract import padded
from tests.pictures import encode, noise
from tests.servers import executions, tidegate, wait_for

PICTURE = encode(noise(64, 64), "JPEG")

# The chart has 30 s for the age, and gRPC waits 30 s between two questions to DNS: a thirtieth here.
AGE_S = 1.0
BETWEEN_QUESTIONS_S = 1.0


class Names:
    """A DNS server on this machine that answers every question with `addresses`."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            question, asker = self._socket.recvfrom(512)
            end = question.index(0, 12) + 5  # behind the name, its type and its class
            (kind,) = struct.unpack_from(">H", question, end - 4)
            found = self.addresses if kind == 1 else []  # 1: IPv4
            head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, len(found), 0, 0)
            records = (b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(each) for each in found)
            self._socket.sendto(head + question[12:end] + b"".join(records), asker)


@contextmanager
def replica(repository: Path, address: str, grpc_port: int) -> Iterator[LocalTriton]:
    """A Triton at an address of its own, with the chart's options, as a pod is one."""
    http_port, metrics_port = free_ports(2)
    server = LocalTriton(
        [repository],
        ports=Ports(http_port, grpc_port, metrics_port),
        arguments=[f"--grpc-address={address}", f"--grpc-max-connection-age={int(AGE_S * 1000)}"],
    )
    with server:
        server.wait_ready()
        yield server


class Callers:
    """Eight clients of one channel that ask without a pause until the end; `failures` are what went wrong."""

    def __init__(self, client: TritonClient) -> None:
        self.answers = 0
        self.failures: Counter[str] = Counter()
        self._client = client
        self._stop = False

    async def __aenter__(self) -> Callers:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(8)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)
        await self._client.close()

    async def _ask(self) -> None:
        while not self._stop:
            try:
                await self._client.infer("probe_ensemble", padded([PICTURE]), [CLASSIFICATION], timeout=10)
                self.answers += 1
            except TidegateError as error:
                self.failures[f"{error} {error.private}"] += 1
            await asyncio.sleep(0.01)


def test_a_triton_takes_anothers_place_and_no_answer_is_lost(
    probe_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one is found, the old one is left alone once its name is gone, and only then does it end."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    pace = ("grpc.dns_min_time_between_resolutions_ms", int(BETWEEN_QUESTIONS_S * 1000))
    monkeypatch.setattr(triton_client, "CHANNEL_OPTIONS", (*triton_client.CHANNEL_OPTIONS, pace))
    names = Names()
    (port,) = free_ports(1)
    with replica(probe_repository, "127.0.0.2", port) as old, replica(probe_repository, "127.0.0.3", port) as new:

        async def until(words: str, done: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 20 * AGE_S
            while not await asyncio.to_thread(done):
                assert time.monotonic() < deadline, words
                await asyncio.sleep(AGE_S)

        async def update() -> Callers:
            names.addresses = ["127.0.0.2"]
            async with Callers(TritonClient(f"dns://127.0.0.1:{names.port}/tritons.test:{port}")) as callers:
                await until("nobody is asked", lambda: asked(old) > 0)
                names.addresses = ["127.0.0.2", "127.0.0.3"]  # ready: the headless service names it
                await until("the new one is not asked", lambda: asked(new) > 0)
                names.addresses = ["127.0.0.3"]  # the old one is told to end, and sleeps
                await asyncio.sleep(
                    2 * (1.1 * AGE_S + BETWEEN_QUESTIONS_S)
                )  # the chart's rule, and as much for this machine
                await until("the old one is still asked", lambda: is_left_alone(old))
                await asyncio.to_thread(old.stop)
                await asyncio.sleep(AGE_S)
            return callers

        callers = asyncio.run(update())
    assert callers.failures == {}
    assert callers.answers > 100


def is_left_alone(server: LocalTriton) -> bool:
    before = asked(server)
    time.sleep(AGE_S)
    return asked(server) == before


def asked(server: LocalTriton) -> int:
    """How many inferences it has made."""
    return executions(server.ports.metrics, "probe")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_gateway_answers_what_it_has_begun_to_read(triton: LocalTriton, workers: int) -> None:
    """After SIGTERM it reads on, answers, and ends well; a gateway of one worker takes no new connection by then."""
    with tidegate("serve", triton_url=triton.url, workers=workers) as (process, client):
        wait_for(client, "/readyz")
        host, port = str(client.base_url.host), client.base_url.port
        assert port is not None
        with closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
            connection.putrequest("POST", "/v1/classify")
            connection.putheader("Content-Length", str(len(PICTURE)))
            connection.endheaders(PICTURE[:100])
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            if workers == 1:
                _until_refused(host, port)
            else:  # the parent of several keeps the port until they have ended, and nobody answers there
                time.sleep(1.5)
            connection.send(PICTURE[100:])
            answer = connection.getresponse()
            assert answer.status == 200
            assert b'"status":"ok"' in answer.read()
        assert process.wait(20) == 0


def test_a_gateway_does_not_wait_for_ever(triton: LocalTriton) -> None:
    """A caller that never finishes is cut off after TIDEGATE_SHUTDOWN_GRACE_S."""
    with tidegate("serve", triton_url=triton.url, shutdown_grace_s=1) as (process, client):
        wait_for(client, "/readyz")
        with socket.create_connection((client.base_url.host, client.base_url.port)) as caller:
            caller.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc")
            time.sleep(0.5)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            assert 0.5 < time.monotonic() - start < 6


def _until_refused(host: str, port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("it still takes connections")
