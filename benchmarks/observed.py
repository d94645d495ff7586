"""`python -m benchmarks.observed`: the whole stack on this machine under loads of several sizes.

Starts `tidegate up` on free ports, sends photos in closed loops and at random times (an open loop), and writes for
each load what came back, what every process spent, and what Triton's own counters say of batches and queues. Other
programs take part of a shared machine, now more, now less: before and after each open loop a closed one shows how much
is left. benchmarks.capacity compares the result with a simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.__main__ import PHOTOS, ROOT
from benchmarks.load import closed_loop, multipart, post
from benchmarks.stacks import Stack, running
from gateway.settings import cores
from gateway.triton.local import free_ports

OUT = ROOT / "docs" / "benchmarks" / "capacity.json"
STEPS = ("preprocessor", "classifier")
SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)  # of the throughput of a closed loop
CLIENTS = 32


@dataclass(frozen=True)
class Observed:
    """One load, of one image a request, and what it led to. Times in seconds; CPU in core-seconds an image."""

    kind: str
    """`closed` or `open`."""
    clients: int | None
    rate: float | None
    images_per_s: float
    refused: int
    failures: int
    p50_s: float
    p95_s: float
    cpu_s: Mapping[str, float]
    """An image, by process: gateway, tritonserver, the stubs of the steps, and the sender of this load."""
    mean_batch: Mapping[str, float]
    pending: Mapping[str, float]
    """Requests that waited for a step, on average."""
    cores_left: float
    """Cores that no other program used."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOS if PHOTOS.is_dir() else ROOT / "examples" / "photos")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of all loads (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    requests = [post("/v1/classify", *multipart(file.read_bytes())) for file in sorted(options.photos.glob("*.jpg"))]
    loads: list[Observed] = []
    with tidegate() as (stack, metrics_port):
        watch = Watch(stack, metrics_port)
        warm = asyncio.run(closed_loop(stack.port, requests, CLIENTS, 400))
        total = int(options.seconds * len(warm.latencies) / warm.seconds)
        for _ in range(options.rounds):
            loads.append(watch.closed(requests, 1, total // 3))
            loads.append(watch.closed(requests, CLIENTS, total))
            for share in SHARES:
                loads.append(watch.open(requests, share * loads[-1].images_per_s, options.seconds))
                loads.append(watch.closed(requests, CLIENTS, total // 2))  # what the machine gives us just now
                print(loads[-2], loads[-1], sep="\n", flush=True)
    about = {"cores": cores(), "photos": len(requests), "bytes": int(statistics.mean(map(len, requests)))}
    options.out.write_text(json.dumps({"about": about, "loads": [asdict(o) for o in loads]}, indent=1) + "\n")


@contextmanager
def tidegate() -> Iterator[tuple[Stack, int]]:
    """`tidegate up` with its default settings, and the port of Triton's metrics."""
    port, http, grpc, metrics = free_ports(4)
    env = {
        "TIDEGATE_PORT": str(port),
        "TIDEGATE_TRITON_HTTP_PORT": str(http),
        "TIDEGATE_TRITON_GRPC_PORT": str(grpc),
        "TIDEGATE_TRITON_METRICS_PORT": str(metrics),
    }
    command = [sys.executable, "-m", "gateway.cli", "up", "--no-build"]
    with running("tidegate", "/v1/classify", "/readyz", port, command, env) as stack:
        yield stack, metrics


class Watch:
    """Sends loads to a stack, and reads the clocks and counters around each."""

    def __init__(self, stack: Stack, metrics_port: int) -> None:
        self._stack = stack
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"

    def closed(self, requests: Sequence[bytes], clients: int, total: int) -> Observed:
        """`clients` connections, each with its next request when it has its answer."""
        before = self._read()
        load = asyncio.run(closed_loop(self._stack.port, requests, clients, total))
        outcome = Outcomes(load.seconds, list(load.latencies), [], load.failures)
        return self._observed("closed", clients, None, outcome, before)

    def open(self, requests: Sequence[bytes], rate: float, seconds: float) -> Observed:
        """`rate` requests a second on average, at random times, whether or not there are answers."""
        before = self._read()
        outcome = asyncio.run(open_loop(self._stack.port, requests, rate, seconds))
        return self._observed("open", None, rate, outcome, before)

    def _read(self) -> Mapping[str, float]:
        """Clocks and counters that only grow."""
        found = {"busy": _busy(), "clock": time.monotonic(), "cpu sender": _cpu(psutil.Process())}
        for process in self._stack.processes():
            name = f"cpu {role(process.cmdline())}"
            found[name] = found.get(name, 0.0) + _cpu(process)
        with urllib.request.urlopen(self._metrics) as answer:  # noqa: S310  # our own address
            return {**found, **counters(answer.read().decode())}

    def _observed(
        self, kind: str, clients: int | None, rate: float | None, outcome: Outcomes, before: Mapping[str, float]
    ) -> Observed:
        grown = {key: value - before.get(key, 0.0) for key, value in self._read().items()}
        cpu = {key.removeprefix("cpu "): value for key, value in grown.items() if key.startswith("cpu ")}
        answered = len(outcome.latencies)
        p50, p95 = np.percentile(outcome.latencies, [50, 95])
        return Observed(
            kind=kind,
            clients=clients,
            rate=rate,
            images_per_s=answered / outcome.seconds,
            refused=outcome.refused,
            failures=outcome.failures,
            p50_s=float(p50),
            p95_s=float(p95),
            cpu_s={name: value / answered for name, value in cpu.items()},
            mean_batch={step: grown[f"count {step}"] / max(grown[f"exec {step}"], 1) for step in STEPS},
            pending={step: grown[f"queue {step}"] / 1e6 / grown["clock"] for step in STEPS},
            cores_left=cores() - (grown["busy"] - sum(cpu.values())) / grown["clock"],
        )


def role(command: Sequence[str]) -> str:
    """What a process of the stack is, by its command line."""
    for step in STEPS:
        if any(f"/{step}/" in word for word in command):
            return step
    return "tritonserver" if any("tritonserver" in word for word in command[:4]) else "gateway"


def counters(text: str) -> dict[str, float]:
    """Of Triton's metrics: images, executions and microseconds in queues of each step."""
    names = {
        "count": "nv_inference_count",
        "exec": "nv_inference_exec_count",
        "queue": "nv_inference_queue_duration_us",
    }
    found = {}
    for short, name in names.items():
        for step in STEPS:
            values = re.findall(rf'^{name}{{model="{step}",version="\d+"}} (\S+)$', text, re.MULTILINE)
            found[f"{short} {step}"] = sum(map(float, values))
    return found


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _busy() -> float:
    """Seconds in which cores of this machine worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@dataclass
class Outcomes:
    """Of an open loop: seconds until the last answer, and the latency of each answer, and of each refusal."""

    seconds: float
    latencies: list[float]
    refusals: list[float]
    failures: int

    @property
    def refused(self) -> int:
        return len(self.refusals)


async def open_loop(port: int, requests: Sequence[bytes], rate: float, seconds: float, seed: int = 0) -> Outcomes:
    """Sends at random times; a latency counts from the time at which the request was due."""
    random = np.random.default_rng(seed)
    due = np.cumsum(random.exponential(1 / rate, int(rate * seconds)))
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    outcome = Outcomes(0.0, [], [], 0)
    start = time.perf_counter()

    async def send(request: bytes, at: float) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        place = head.index(b"content-length:") + 15
        await reader.readexactly(int(head[place : head.index(b"\r\n", place)]))
        if head.startswith(b"http/1.1 200"):
            outcome.latencies.append(time.perf_counter() - start - at)
        elif head.startswith(b"http/1.1 503"):
            outcome.refusals.append(time.perf_counter() - start - at)
        else:
            outcome.failures += 1
        if b"connection: close" in head:
            writer.close()
        else:
            idle.append((reader, writer))

    tasks = []
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        tasks.append(asyncio.create_task(send(requests[number % len(requests)], float(at))))
    await asyncio.gather(*tasks)
    outcome.seconds = time.perf_counter() - start
    for _, writer in idle:
        writer.close()
    return outcome


if __name__ == "__main__":
    main()
