"""`tidegate up` as a newcomer meets it."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.triton.local import free_ports
from tests.pictures import encode, noise
from tests.servers import ROOT, tidegate, wait_for


def test_up_classifies_the_samples_serves_and_stops() -> None:
    """A real Triton and the gateway start, the samples' top-5 are printed, Ctrl-C ends all with exit code 0."""
    http, grpc, metrics = free_ports(3)
    ports = {"triton_http_port": http, "triton_grpc_port": grpc, "triton_metrics_port": metrics}
    with tidegate("up", **ports) as (process, client):
        wait_for(client, "/readyz", seconds=60)
        assert client.post("/v1/classify", content=encode(noise(64, 64))).status_code == 200
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "Ctrl-C stops everything.\n"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    for photo, label in (("cat.jpg", "Egyptian cat"), ("coffee.jpg", "espresso"), ("rocket.jpg", "missile")):
        assert photo in said
        assert label in said
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", grpc))  # nothing was left behind


def test_a_port_in_use() -> None:
    """One sentence names the port and the setting; exit code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "up"],
            cwd=ROOT,
            env={"TIDEGATE_PORT": str(port), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"Port {port} cannot be used" in done.stderr
    assert "TIDEGATE_PORT" in done.stderr


@pytest.mark.skipif(not (Path(sys.prefix) / ".installed").exists(), reason="not an environment that make made")
def test_ctrl_c_in_a_terminal_ends_make_up_well() -> None:
    """Under make in a real terminal, Ctrl-C stops everything, and make's exit code is 0."""
    names = ("TIDEGATE_PORT", "TIDEGATE_TRITON_HTTP_PORT", "TIDEGATE_TRITON_GRPC_PORT", "TIDEGATE_TRITON_METRICS_PORT")
    ports = dict(zip(names, map(str, free_ports(4)), strict=True))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | ports
    maker, terminal = pty.fork()
    if maker == 0:
        os.chdir(ROOT)
        os.execvpe("make", ["make", "--old-file", f"{sys.prefix}/.installed", "up", f"VENV={sys.prefix}"], environment)
    said = b""
    while b"Ctrl-C stops everything." not in said:
        said += os.read(terminal, 4096)  # raises when make has ended
    os.write(terminal, b"\x03")
    with suppress(OSError):  # the terminal is gone with its last process
        while os.read(terminal, 4096):
            pass
    _, status = os.waitpid(maker, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
