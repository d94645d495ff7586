"""`tidegate serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gateway.triton.local import LocalTriton, Ports, free_ports
from tests.pictures import encode, noise, solid
from tests.servers import ROOT, metric, tidegate, wait_for

PICTURE = encode(noise(64, 64), "JPEG")


def test_in_front_of_a_triton_that_is_down(triton: LocalTriton) -> None:
    """It starts, says so, answers 503, and works soon after Triton came up."""
    ports = Ports(*free_ports(3))
    late = LocalTriton([ROOT / "model_repository"], ports=ports)
    with tidegate("serve", triton_url=late.url) as (process, client):
        assert client.get("/readyz").status_code == 503
        answer = client.post("/v1/classify", content=PICTURE)
        assert (answer.status_code, answer.json()["code"]) == (503, "upstream_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/v1/models").json()["code"] == "upstream_unavailable"
        with late:
            late.wait_ready()
            wait_for(client, "/readyz", seconds=10)
            assert client.post("/v1/classify", content=PICTURE).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    assert "Triton is not ready" in log
    assert "Triton is ready" in log


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(triton: LocalTriton, stop: signal.Signals) -> None:
    """SIGTERM and Ctrl-C: exit code 0."""
    with tidegate("serve", triton_url=triton.url) as (process, client):
        wait_for(client, "/readyz")
        process.send_signal(stop)
        assert process.wait(20) == 0


def until_refused(client: httpx.Client) -> None:
    """The port is let go of, though there is work in flight: nobody is let in and left waiting."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=5).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("the port is still open")


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_loses_nothing(triton: LocalTriton, workers: int) -> None:
    """What is in flight is finished, who comes meanwhile is answered, `/readyz` says at once that the end is near."""
    slow = encode(solid((13, 13, 70)))  # the probe classifier takes 0.7 s for each
    settings = {"triton_url": triton.url, "default_model": "probe_ensemble", "workers": workers, "shutdown_delay_s": 2}
    with tidegate("serve", **settings) as (process, client), ThreadPoolExecutor(10) as callers:
        url = f"{client.base_url}/v1/classify"
        for _ in range(10):  # each on a new connection, so by any of the workers
            with httpx.Client(base_url=client.base_url) as other:
                wait_for(other, "/readyz")
        answers = [callers.submit(httpx.post, url, content=slow, timeout=30) for _ in range(10)]
        while metric(client, "tidegate_in_flight_images") < 5:
            assert not all(answer.done() for answer in answers)
        process.send_signal(signal.SIGTERM)
        while (answer := httpx.get(f"{client.base_url}/readyz")).json().get("code") != "overloaded":
            time.sleep(0.02)  # until the signal has reached every worker
        assert answer.status_code == 503
        assert answer.headers["connection"] == "close"
        assert httpx.get(f"{client.base_url}/livez").status_code == 200
        assert httpx.post(url, content=slow, timeout=30).status_code == 200
        until_refused(client)
        assert [answer.result().status_code for answer in answers] == [200] * 10
        assert process.wait(30) == 0


def test_metrics_are_exact_over_workers(triton: LocalTriton) -> None:
    """Every worker answers a scrape for all of them."""
    with tidegate("serve", triton_url=triton.url, workers=2) as (process, client):
        wait_for(client, "/readyz")
        for _ in range(20):  # a new connection each: any worker may get it
            assert httpx.post(f"{client.base_url}/v1/classify", content=PICTURE).status_code == 200
        for _ in range(5):
            answer = httpx.get(f"{client.base_url}/metrics")
            assert answer.status_code == 200
        assert metric(client, "tidegate_images_total", outcome="ok") == 20
        assert metric(client, "tidegate_in_flight_images") == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_metrics_on_a_port_of_their_own(triton: LocalTriton) -> None:
    """There they are, of all workers, and no longer where callers come; anything else there is 404."""
    (port,) = free_ports(1)
    with tidegate("serve", triton_url=triton.url, workers=2, metrics_port=port) as (process, client):
        wait_for(client, "/readyz")
        for _ in range(10):
            assert httpx.post(f"{client.base_url}/v1/classify", content=PICTURE).status_code == 200
        assert client.get("/metrics").status_code == 404
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as scraper:
            assert metric(scraper, "tidegate_images_total", outcome="ok") == 10
            assert scraper.get("/").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(("host", "level"), [("127.0.0.1", "info"), ("0.0.0.0", "warning")])
def test_a_gateway_without_keys_says_so(host: str, level: str) -> None:
    """Louder where others than this machine reach it."""
    with tidegate("serve", triton_url="127.0.0.1:1", host=host, log_format="json") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    (line,) = [json.loads(line) for line in log.splitlines() if "There are no API keys" in line]
    assert line["level"] == level


def test_keys_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    """A gateway that should ask for keys does not start without them."""
    environment = {**os.environ, "TIDEGATE_API_KEYS_FILE": str(tmp_path / "keys.json")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "tidegate keys add NAME" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_setting_is_one_line(triton: LocalTriton) -> None:
    """No traceback: the variable and what would do; exit code 1."""
    environment = {**os.environ, "TIDEGATE_MAX_IMAGES": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "TIDEGATE_MAX_IMAGES='0'" in done.stderr
    assert "Traceback" not in done.stderr
