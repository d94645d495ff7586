"""Real servers for tests: a gateway in a thread, and a count of what Triton executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import uvicorn

from gateway.app import create_app
from gateway.cli.serve import server_options
from gateway.settings import Settings
from gateway.triton import Triton
from gateway.triton.local import free_ports

ROOT = Path(__file__).parents[1]
PHOTOS = ROOT.parent / "shared" / "data" / "photos"


@contextmanager
def running_gateway(settings: Settings, triton: Triton | None = None) -> Iterator[httpx.Client]:
    """A gateway on a real socket with the options of `tidegate serve`, and a client of it."""
    (port,) = free_ports(1)
    options = server_options(settings.model_copy(update={"port": port}))
    del options["factory"], options["workers"]
    server = uvicorn.Server(uvicorn.Config(create_app(settings, triton), **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.started
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(20)


def executions(metrics_port: int, model: str) -> int:
    """How many times Triton executed `model` so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
        text = answer.read().decode()
    counts = re.findall(rf'^nv_inference_exec_count{{model="{model}",version="\d+"}} (\d+)', text, re.MULTILINE)
    return sum(map(int, counts))


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of a metric's series that carry `labels`."""
    total = 0.0
    for line in client.get("/metrics").text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            total += float(value)
    return total


@contextmanager
def tidegate(*arguments: str, **settings: object) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A process of the command, and a client of it once it is alive."""
    (port,) = free_ports(1)
    given = {"port": port, "shutdown_delay_s": 0, **settings}
    environment = {f"TIDEGATE_{name.upper()}": str(value) for name, value in given.items()}
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_for(client, "/livez")
            yield process, client
    finally:
        with suppress(psutil.NoSuchProcess):  # killed workers and Tritons would hold the pipes open
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()
        process.kill()
        process.communicate()


def wait_for(client: httpx.Client, path: str, seconds: float = 30) -> float:
    """Until `path` answers 200; how long that took."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        try:
            if client.get(path).status_code == 200:
                return time.monotonic() - start
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{path} is not 200 after {seconds} s")
