"""The contenders as processes: start, port, and the CPU time that all their processes have used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.triton.local import free_ports

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Stack:
    """A running contender; requests go to `path` on `port`."""

    name: str
    port: int
    path: str
    pid: int

    def processes(self) -> list[psutil.Process]:
        """The contender and all its descendants."""
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system time of all processes so far."""
        times = [process.cpu_times() for process in self.processes()]
        return sum(t.user + t.system for t in times)


@contextmanager
def running(name: str, path: str, ready: str, port: int, command: list[str], env: Mapping[str, str]) -> Iterator[Stack]:
    """Starts `command` and waits until `ready` answers 200; stops it with SIGTERM."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, stdout=out, stderr=out)
        try:
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=5):
                        break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            else:
                out.seek(0)
                raise RuntimeError(f"{name} did not start: {out.read()[-2000:].decode(errors='replace')}")
            yield Stack(name, port, path, process.pid)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def tidegate() -> Iterator[Stack]:
    """`tidegate up` with its default settings."""
    port, http, grpc, metrics = free_ports(4)
    env = {
        "TIDEGATE_PORT": str(port),
        "TIDEGATE_TRITON_HTTP_PORT": str(http),
        "TIDEGATE_TRITON_GRPC_PORT": str(grpc),
        "TIDEGATE_TRITON_METRICS_PORT": str(metrics),
    }
    command = [sys.executable, "-m", "gateway.cli", "up"]
    with running("tidegate", "/v1/classify", "/readyz", port, command, env) as stack:
        yield stack


@contextmanager
def plain(decoder: str = "pillow") -> Iterator[Stack]:
    """FastAPI + onnxruntime, two workers."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "benchmarks.contenders.plain:app", "--workers", "2"]
    command += ["--port", str(port), "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"]
    name = "plain" if decoder == "pillow" else "plain, our decoder"
    with running(name, "/classify", "/docs", port, command, {"PLAIN_DECODER": decoder}) as stack:
        time.sleep(3)  # the second worker
        yield stack


def plain_with_our_decoder() -> AbstractContextManager[Stack]:
    """The same with this project's decoder and resizer."""
    return plain("ours")
