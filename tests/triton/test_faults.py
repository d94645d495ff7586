"""What breaks in real Tritons and real gateways, what callers see meanwhile, and that it mends itself."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from gateway.errors import UpstreamUnavailable
from gateway.triton import Tensor, local
from gateway.triton.client import TritonClient
from gateway.triton.local import LocalTriton, LocalTritonError, find_installation, free_ports
from gateway.triton.tensors import CLASSIFICATION
from tests.deploy.test_rolling_update import Names, replica
from tests.gateway.triton.test_contract import padded
from tests.model_repository.test_guard import heavy
from tests.pictures import RED, encode, solid
from tests.probe import probe_triton, processes, stub_of
from tests.servers import executions, metric, tidegate, wait_for
from tests.triton.test_probe import colours, means

PICTURE = encode(solid(RED))
GOOD, GONE, LATE = (200, "ok"), (503, "upstream_unavailable"), (504, "deadline_exceeded")
NOT_READY, NONSENSE = (503, "model_not_ready"), (502, "bad_upstream_response")


@pytest.fixture(autouse=True, scope="module")
def _with_triton() -> None:
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Asked:
    """One request: when it was sent (monotonic), how long it took, and what came back."""

    at: float
    seconds: float
    outcome: tuple[int, str]


class Steady:
    """Asks 25 times a second, a connection for each question, until the end; a wrong colour fails the test."""

    def __init__(self, client: httpx.Client, timeout_s: float = 5) -> None:
        self.asked: list[Asked] = []
        self._client = client
        self._timeout_s = timeout_s
        self._stop = threading.Event()

    def __enter__(self) -> Steady:
        self._pool = ThreadPoolExecutor(20)
        self._thread = threading.Thread(target=self._ask_on)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()

    def _ask_on(self) -> None:
        while not self._stop.wait(0.04):
            self._pool.submit(self._ask)

    def _ask(self) -> None:
        begun = time.monotonic()
        outcome = classify(self._client, self._timeout_s)
        self.asked.append(Asked(begun, time.monotonic() - begun, outcome))

    def outcomes(self, since: float = 0) -> Counter[tuple[int, str]]:
        return Counter(each.outcome for each in self.asked if each.at >= since)


def classify(client: httpx.Client, timeout_s: float = 5) -> tuple[int, str]:
    """On a connection of its own; httpx would make a TLS context for each, which takes longer than the answer."""
    headers = {"x-request-timeout": str(timeout_s)}
    with closing(HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)) as connection:
        connection.request("POST", "/v1/classify?top_k=12", PICTURE, headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
    if answer.status == 200:
        assert means(document["results"][0]) == [RED] * 4
    return answer.status, document.get("code", "ok")


@contextmanager
def gateway(*tritons: LocalTriton, **settings: object) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    """A process of `tidegate serve` in front of them, which must not log a traceback."""
    urls = ",".join(triton.url for triton in tritons)
    with tidegate("serve", triton_url=urls, default_model="probe_ensemble", **settings) as (process, client):
        wait_for(client, "/readyz")
        yield psutil.Process(process.pid), client
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
        assert "Traceback" not in log


def until(what: str, seconds: float, done: Any) -> float:
    begun = time.monotonic()
    while not done():
        assert time.monotonic() - begun < seconds, what
        time.sleep(0.02)
    return time.monotonic()


def test_triton_is_killed(probe_repository: Path) -> None:
    """At once 503, for callers and at /readyz; soon after Triton is back there are answers, of the same process."""
    with probe_triton(probe_repository) as triton, gateway(triton) as (process, client), Steady(client) as load:
        time.sleep(1)
        first = triton.pid
        psutil.Process(first).kill()
        killed = time.monotonic()
        until("/readyz is not 503", 3, lambda: client.get("/readyz").status_code == 503)
        assert client.get("/livez").status_code == 200
        until("no new Triton", 10, lambda: triton.pid != first)
        triton.wait_ready()
        back = time.monotonic()
        served = until("no answer", 5, lambda: classify(client) == GOOD)
        assert served - back < 3
        assert process.is_running()
        time.sleep(0.5)
    refused = [each for each in load.asked if each.at > killed + 0.1 and each.at < back - 0.5]
    assert {each.outcome for each in refused} == {GONE}
    assert sorted(each.seconds for each in refused)[len(refused) // 2] < 0.1
    assert max(each.seconds for each in load.asked) < 5.5
    assert set(load.outcomes()) == {GOOD, GONE}
    assert set(load.outcomes(since=served)) == {GOOD}


def test_a_stub_is_killed(probe_repository: Path) -> None:
    """Nobody hangs and /readyz tells the truth; the embedded Triton is started again, and all is well."""
    with probe_triton(probe_repository) as triton, gateway(triton) as (_, client), Steady(client, 2) as load:
        time.sleep(1.2)  # the watch of the embedded Triton must have seen its stubs
        first = triton.pid
        stub_of(triton, "probe_preprocessor").kill()
        until("/readyz is not 503", 4, lambda: client.get("/readyz").status_code == 503)
        until("no new Triton", 10, lambda: triton.pid != first)
        triton.wait_ready()
        served = until("no answer", 5, lambda: classify(client) == GOOD)
        time.sleep(0.5)
    assert max(each.seconds for each in load.asked) < 2.5
    assert set(load.outcomes()) <= {GOOD, GONE, LATE, NOT_READY, NONSENSE}
    assert set(load.outcomes(since=served + 0.1)) == {GOOD}


def test_a_stub_is_killed_where_nobody_restarts_it(probe_repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton says that it is ready, and answers nothing: the gateway asks the other one."""
    monkeypatch.setattr(local, "STOP_S", 1.0)  # without its stub it has no answer to SIGTERM either
    alone = ("--model-control-mode=explicit", "--load-model=probe_ensemble")  # then LocalTriton leaves stubs alone
    with (
        probe_triton(probe_repository, *alone) as broken,
        probe_triton(probe_repository) as well,
        gateway(broken, well) as (_, client),
        Steady(client, 2) as load,
    ):
        time.sleep(0.5)
        stub_of(broken, "probe_preprocessor").kill()
        until("it is still called ready", 5, lambda: metric(client, "tidegate_triton_ready", endpoint=broken.url) == 0)
        known = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{broken.ports.http}/v2/health/ready") as answer:
            assert answer.status == 200
        time.sleep(2)
        assert client.get("/readyz").status_code == 200
    assert set(load.outcomes(since=known)) == {GOOD}
    assert max(each.seconds for each in load.asked) < 2.5


def test_the_decoders_are_killed(probe_repository: Path) -> None:
    """Idle or at work, another decoder takes the picture: the caller sees nothing of it."""
    with probe_triton(probe_repository) as triton, gateway(triton) as (_, client), ThreadPoolExecutor(1) as other:

        def decoders() -> list[psutil.Process]:
            return [each for each in processes(triton) if each.cmdline()[-1:] and "decoder.py" in str(each.cmdline())]

        file = heavy(4000)
        assert client.post("/v1/classify", content=file).status_code == 200
        for decoder in decoders():
            decoder.kill()
        answer = other.submit(client.post, "/v1/classify", content=file)
        time.sleep(0.1)
        for decoder in decoders():
            decoder.kill()
        assert answer.result().status_code == 200


def test_a_classifier_is_unloaded(probe_repository: Path) -> None:
    """`model_not_ready` in our words and under our request id; loaded again, it answers again."""
    arguments = ("--model-control-mode=explicit", "--load-model=probe_ensemble")
    with probe_triton(probe_repository, *arguments) as triton, gateway(triton) as (_, client):
        control = f"http://127.0.0.1:{triton.ports.http}/v2/repository/models/probe"
        assert httpx.post(f"{control}/unload").status_code == 200
        headers = {"x-request-timeout": "1", "x-request-id": "mine"}
        answer = client.post("/v1/classify", content=PICTURE, headers=headers)
        document = answer.json()
        assert (answer.status_code, document["code"], document["request_id"]) == (503, "model_not_ready", "mine")
        assert int(answer.headers["retry-after"]) >= 1
        assert not {"probe", "ensemble", "version", "unknown"} & set(answer.text.lower().replace('"', " ").split())
        until("/readyz is not 503", 5, lambda: client.get("/readyz").json().get("code") == "model_not_ready")
        assert httpx.post(f"{control}/load", timeout=30).status_code == 200
        wait_for(client, "/readyz", 10)
        assert classify(client) == GOOD


def test_triton_is_stopped_for_a_while(probe_repository: Path) -> None:
    """SIGSTOP: calls end at their deadline, /readyz says so; after SIGCONT there are answers again."""
    with probe_triton(probe_repository) as triton, gateway(triton) as (_, client), Steady(client, 1) as load:
        time.sleep(0.5)
        psutil.Process(triton.pid).suspend()
        stopped = time.monotonic()
        try:
            until("/readyz is not 503", 6, lambda: client.get("/readyz").status_code == 503)
            assert client.get("/livez").status_code == 200
            time.sleep(1)
        finally:
            psutil.Process(triton.pid).resume()
        time.sleep(0.5)
        wait_for(client, "/readyz", 5)
        served = until("no answer", 5, lambda: classify(client) == GOOD)
        time.sleep(0.5)
    while_stopped = [each for each in load.asked if stopped + 0.1 < each.at < stopped + 1]
    assert while_stopped
    assert {each.outcome for each in while_stopped} == {LATE}
    assert all(0.95 < each.seconds < 1.5 for each in while_stopped)
    assert set(load.outcomes(since=served)) == {GOOD}


def test_of_two_one_is_stopped(probe_repository: Path) -> None:
    """Calls that it holds are late; from its first failed probe on the other answers all."""
    with (
        probe_triton(probe_repository) as a,
        probe_triton(probe_repository) as b,
        gateway(a, b) as (_, client),
        Steady(client, 1) as load,
    ):
        psutil.Process(a.pid).suspend()
        try:
            until("it is still called ready", 6, lambda: metric(client, "tidegate_triton_ready", endpoint=a.url) == 0)
            known = time.monotonic()
            time.sleep(1)
            assert client.get("/readyz").status_code == 200
            assert set(load.outcomes(since=known)) == {GOOD}
        finally:
            psutil.Process(a.pid).resume()
        until("it is not used again", 10, lambda: metric(client, "tidegate_triton_ready", endpoint=a.url) == 1)
    assert load.outcomes()[GOOD] > 0.9 * len(load.asked)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_two_share_and_one_comes_and_goes(probe_repository: Path) -> None:
    """Half each; killed, the other answers all; back, it has its half again within ten seconds."""
    with (
        probe_triton(probe_repository) as a,
        probe_triton(probe_repository) as b,
        gateway(a, b) as (_, client),
        Steady(client) as load,
    ):

        def share() -> float:
            """Of `a`, among the next fifty."""
            before = [executions(each.ports.metrics, "probe_ensemble") for each in (a, b)]
            already = len(load.asked)
            until("nothing is answered", 10, lambda: len(load.asked) > already + 50)
            counts = [executions(each.ports.metrics, "probe_ensemble") for each in (a, b)]
            asked = [count - n for count, n in zip(counts, before, strict=True)]
            return asked[0] / sum(asked)

        assert 0.4 < share() < 0.6
        first, in_flight = a.pid, 20
        psutil.Process(first).kill()
        until("no new Triton", 10, lambda: a.pid != first)
        a.wait_ready()
        back = time.monotonic()
        until("it has no metrics", 10, lambda: listens(a.ports.metrics))  # they begin a moment after the models
        until("it is not used again", 10, lambda: executions(a.ports.metrics, "probe_ensemble") > 5)
        assert time.monotonic() - back < 10
        assert 0.4 < share() < 0.6
    assert load.outcomes().pop(GOOD) >= len(load.asked) - in_flight


def test_triton_comes_back_elsewhere(probe_repository: Path) -> None:
    """Killed without a word, and started at another address behind the same name: found by asking DNS again."""
    names, (port,) = Names(), free_ports(1)
    names.addresses = ["127.0.0.2"]

    async def answers(client: TritonClient) -> bool:
        try:
            await client.infer("probe_ensemble", padded([PICTURE]), [CLASSIFICATION], timeout=5)
        except UpstreamUnavailable:
            return False
        return True

    async def work() -> None:
        client = TritonClient(f"dns://127.0.0.1:{names.port}/tritons.test:{port}")
        try:
            with replica(probe_repository, "127.0.0.2", port):
                assert await answers(client)
            assert not await answers(client)
            names.addresses = ["127.0.0.3"]
            with replica(probe_repository, "127.0.0.3", port):
                begun = time.monotonic()
                while not await answers(client):
                    assert time.monotonic() - begun < 10
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    asyncio.run(work())


def test_sixty_megabytes(probe_repository: Path) -> None:
    """A body just below the cap goes through, and Triton's and gRPC's own limits are not met."""
    file = encode(solid(RED, (2300, 2300)), "BMP")
    with probe_triton(probe_repository) as triton, gateway(triton) as (_, client):
        files = [("files", (f"{i}.bmp", file)) for i in range(4)]
        answer = client.post("/v1/classify", params={"top_k": 12}, files=files)
        assert colours(answer) == [[RED] * 4] * 4
        assert len(file) * 4 > 63_000_000


def test_large_messages_both_ways(tmp_path: Path) -> None:
    """A request and an answer of 20 MB: beyond the 4 MB at which gRPC would stop by itself."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(
        'backend: "python" input { name: "I" data_type: TYPE_UINT8 dims: -1 }'
        ' output { name: "O" data_type: TYPE_UINT8 dims: -1 }'
    )
    (tmp_path / "echo" / "1" / "model.py").write_text(
        "import triton_python_backend_utils as pb\n\n\nclass TritonPythonModel:\n    def execute(self, requests):\n"
        "        tensors = [pb.get_input_tensor_by_name(each, 'I').as_numpy() for each in requests]\n"
        "        return [pb.InferenceResponse([pb.Tensor('O', each)]) for each in tensors]\n"
    )
    data = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8).tobytes()

    async def echo(url: str) -> bytes:
        client = TritonClient(url)
        try:
            answer = await client.infer("echo", [Tensor("I", "UINT8", (len(data),), data)], ["O"], timeout=20)
            return bytes(answer.outputs["O"].tobytes())
        finally:
            await client.close()

    with probe_triton(tmp_path) as triton:
        assert asyncio.run(echo(triton.url)) == data
