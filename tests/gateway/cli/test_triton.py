"""`tidegate triton` as the CPU container runs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.triton.local import free_ports


@contextmanager
def triton(repository: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, and its HTTP port."""
    http, grpc, metrics = free_ports(3)
    settings = {
        "TIDEGATE_HOST": "127.0.0.2",
        "TIDEGATE_MODEL_REPOSITORY": str(repository),
        "TIDEGATE_TRITON_HTTP_PORT": str(http),
        "TIDEGATE_TRITON_GRPC_PORT": str(grpc),
        "TIDEGATE_TRITON_METRICS_PORT": str(metrics),
    }
    command = [sys.executable, "-m", "gateway.cli", "triton", *arguments]
    with subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, http
        finally:
            process.terminate()
            process.communicate(timeout=30)


def status(url: str) -> int:
    """The HTTP status; 0 where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(url: str, wanted: int, seconds: float = 60) -> None:
    """Until `url` answers with the status."""
    deadline = time.monotonic() + seconds
    while (found := status(url)) != wanted:
        assert time.monotonic() < deadline, f"{url} answers {found}, not {wanted}"
        time.sleep(0.1)


def test_it_serves_on_the_address_that_is_set_and_stops(probe_repository: Path) -> None:
    """Ready on `TIDEGATE_HOST` and nowhere else, its log on standard error; SIGTERM ends it with exit code 0."""
    with triton(probe_repository) as (process, port):
        wait_for(f"http://127.0.0.2:{port}/v2/health/ready", 200)
        assert status(f"http://127.0.0.1:{port}/v2/health/ready") == 0
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Started HTTPService" in log


def test_ready_means_every_model(probe_repository: Path, tmp_path: Path) -> None:
    """One model that does not load keeps it from being ready, and the others from nothing."""
    shutil.copytree(probe_repository, tmp_path, dirs_exist_ok=True)
    (tmp_path / "probe" / "1" / "model.py").write_text("raise RuntimeError('broken on purpose')\n")
    with triton(tmp_path) as (_, port):
        url = f"http://127.0.0.2:{port}/v2"
        wait_for(f"{url}/models/probe_preprocessor/ready", 200)
        assert status(f"{url}/health/ready") == 400
        assert status(f"{url}/models/probe/ready") == 400


def test_options_reach_tritonserver(tmp_path: Path) -> None:
    """What stands behind -- is tritonserver's: one that it does not know is named in the log."""
    with triton(tmp_path, "--", "--no-such-option") as (process, _):
        assert process.stderr is not None
        assert any("no-such-option" in line for line in process.stderr)


def test_a_port_in_use(tmp_path: Path) -> None:
    """One sentence names the port and the setting; exit code 1."""
    taken = "TIDEGATE_TRITON_GRPC_PORT"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        environment = {
            **os.environ,
            "TIDEGATE_MODEL_REPOSITORY": str(tmp_path),
            "TIDEGATE_TRITON_HTTP_PORT": str(free_ports(1)[0]),
            taken: str(listener.getsockname()[1]),
        }
        command = [sys.executable, "-m", "gateway.cli", "triton"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert taken in done.stderr
    assert "Traceback" not in done.stderr
