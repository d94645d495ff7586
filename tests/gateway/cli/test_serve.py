"""`tidegate serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import pytest

from gateway.triton.local import LocalTriton, Ports, free_ports
from tests.pictures import encode, noise
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


def test_a_wrong_setting_is_one_line(triton: LocalTriton) -> None:
    """No traceback: the variable and what would do; exit code 1."""
    environment = {**os.environ, "TIDEGATE_MAX_IMAGES": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "TIDEGATE_MAX_IMAGES='0'" in done.stderr
    assert "Traceback" not in done.stderr
