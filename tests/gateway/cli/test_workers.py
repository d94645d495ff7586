"""Several workers as one gateway: counts, and what many requests leave behind."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import psutil

from gateway.triton.fake import FakeTriton
from tests.chaos.faults import workers
from tests.grpc_triton import grpc_triton
from tests.pictures import encode, noise
from tests.probe import probe_triton
from tests.servers import metric, tidegate, wait_for

PICTURE = encode(noise(16, 16))
WARM, MANY = 800, 5000


def classify(client: httpx.Client, times: int) -> None:
    """So many requests, each on a connection of its own: any worker may get it."""
    for _ in range(times):
        with closing(HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)) as connection:
            connection.request("POST", "/v1/classify", PICTURE)
            assert connection.getresponse().status == 200


def counted(client: httpx.Client, name: str, **labels: str) -> float:
    """What the metrics say; asked on a new connection too."""
    with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
        return metric(fresh, name, **labels)


def answered(client: httpx.Client) -> float:
    return counted(client, "tidegate_http_requests_total", route="/v1/classify", status="200")


def test_counts_outlive_a_worker() -> None:
    """200 requests are 200 at each of 20 scrapes of four workers; one is killed, and after 200 more it is 400."""
    with grpc_triton(FakeTriton()) as triton, tidegate("serve", triton_url=triton.url, workers=4) as (process, client):
        wait_for(client, "/readyz")
        gateway = psutil.Process(process.pid)
        deadline = time.monotonic() + 20
        while len(workers(gateway)) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        classify(client, 200)
        assert [answered(client) for _ in range(20)] == [200] * 20
        workers(gateway)[0].kill()
        for _ in range(20):
            assert answered(client) == 200
        classify(client, 200)
        assert [answered(client) for _ in range(20)] == [400] * 20
        assert counted(client, "tidegate_in_flight_images") == 0


def test_many_requests_leave_nothing(probe_repository: Path) -> None:
    """5,000 requests later the process has the memory, the file descriptors and the threads that it had before."""
    options = {"default_model": "probe_ensemble", "access_log": False}
    with (
        probe_triton(probe_repository) as triton,
        tidegate("serve", triton_url=triton.url, **options) as (process, client),
    ):
        wait_for(client, "/readyz")
        gateway = psutil.Process(process.pid)

        def ask(times: int) -> None:
            with closing(HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)) as connection:
                for i in range(times):
                    body = PICTURE if i % 10 else b"no picture"
                    connection.request("POST", "/v1/classify", body, {"Content-Type": "application/octet-stream"})
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == (200 if i % 10 else 422)

        def held_after(requests: int) -> tuple[int, int, int]:
            with ThreadPoolExecutor(8) as callers:
                list(callers.map(ask, [requests // 8] * 8))
            time.sleep(0.5)  # the last connections are closed by then
            return gateway.memory_info().rss, gateway.num_fds(), gateway.num_threads()

        before, after = held_after(WARM), held_after(MANY)
        assert after[0] - before[0] < 8 * 2**20
        assert after[1] <= before[1] + 2
        assert after[2] <= before[2] + 2
