"""The embedded Triton: what it needs, and what it says when that is missing."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from gateway.triton import local
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, free_ports


@pytest.mark.parametrize(
    ("target", "name", "value", "said"),
    [
        (platform, "machine", lambda: "aarch64", "Linux on x86_64"),
        (platform, "system", lambda: "Darwin", "tidegate serve"),
        (platform, "libc_ver", lambda: ("glibc", "2.31"), "glibc 2.35"),
        (metadata, "version", lambda name: "2.1.0", "pip install 'numpy<2'"),
        (sys, "version_info", (3, 13, 0, "final", 0), "3.10 to 3.12"),
        (importlib.util, "find_spec", lambda name: None, "pip install 'tidegate"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, value: object, said: str
) -> None:
    """Each requirement that does not hold is one sentence that tells what to do."""
    monkeypatch.setattr(target, name, value)
    with pytest.raises(LocalTritonError) as error:
        local.find_installation()
    assert said in str(error.value)


def test_a_python_without_a_shared_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A statically built interpreter is recognised, and the package to install named."""
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(LocalTritonError, match="apt-get install libpython3"):
        local.find_installation()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """The error says which port, and which setting moves it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = LocalTriton([tmp_path], ports=Ports(port, *free_ports(2)))
        with pytest.raises(LocalTritonError, match=f"Port {port} .*TIDEGATE_TRITON_HTTP_PORT"):
            server.start()
        server.stop()


def test_no_repository(tmp_path: Path) -> None:
    """A repository that is not there is named."""
    with pytest.raises(LocalTritonError, match="no model repository at"):
        LocalTriton([tmp_path / "nowhere"]).start()


def test_it_is_restarted_when_it_dies_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL brings a new server; stop ends it and its private folder."""
    server = LocalTriton([tmp_path], ports=Ports(*free_ports(3)))
    with server:
        server.wait_ready()
        first = server.pid
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while server.pid == first and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.pid != first
        server.wait_ready()
        second, folder = server.pid, server.log_file.parent
    assert not psutil.pid_exists(second)
    assert not folder.exists()
    assert not list(Path("/dev/shm").glob(f"{folder.name}*"))


def test_it_does_not_outlive_its_owner(tmp_path: Path) -> None:
    """A gateway killed with SIGKILL takes its Triton along."""
    ports = free_ports(3)
    program = (
        "import sys, time; from pathlib import Path; from gateway.triton.local import LocalTriton, Ports\n"
        f"t = LocalTriton([Path({str(tmp_path)!r})], ports=Ports(*{ports!r})); t.start(); t.wait_ready()\n"
        "print(t.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    server.wait(20)
    assert not server.is_running()


def test_a_dead_stub_brings_a_new_server(probe_repository: Path) -> None:
    """Triton never restarts a stub, and would answer with errors for ever: the whole server is started again."""
    with LocalTriton([probe_repository], ports=Ports(*free_ports(3))) as server:
        server.wait_ready()
        first = psutil.Process(server.pid)
        stubs = [p for p in first.children(recursive=True) if p.name().startswith("triton_python_b")]
        assert len(stubs) == 2  # the preprocessor's and the probe's
        time.sleep(2 * local.WATCH_INTERVAL_S)  # it must have seen them alive
        stubs[0].kill()
        deadline = time.monotonic() + 20
        while server.pid == first.pid and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.pid != first.pid
        server.wait_ready()


def test_stopped_while_a_model_loads_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has no answer to SIGTERM is killed, and its stub with it."""
    monkeypatch.setattr(local, "STOP_S", 1.0)
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(
        'backend: "python" input { name: "I" data_type: TYPE_INT32 dims: 1 }'
        ' output { name: "O" data_type: TYPE_INT32 dims: 1 }'
    )
    (tmp_path / "slow" / "1" / "model.py").write_text(
        "import time\nclass TritonPythonModel:\n    def initialize(self, args): time.sleep(600)\n"
    )
    with LocalTriton([tmp_path], ports=Ports(*free_ports(3))) as server:
        stubs: list[psutil.Process] = []
        while not stubs:
            children = psutil.Process(server.pid).children(recursive=True)
            stubs = [p for p in children if p.name().startswith("triton_python_b")]
            time.sleep(0.05)
        folder = server.log_file.parent
    _, alive = psutil.wait_procs(stubs, timeout=10)
    assert alive == []
    assert not list(Path("/dev/shm").glob(f"{folder.name}*"))
