"""`python -m tests.chaos`: two real Tritons, a gateway of two workers, steady load, and always something broken.

What must hold: every request gets one right answer, or one documented error, in its time; only a connection whose
gateway worker was killed may break. Afterwards everything answers again by itself, and nothing has leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from gateway.triton import local
from gateway.triton.local import free_ports
from tests.chaos.faults import Faults, workers
from tests.chaos.load import BROKEN, Callers, pool
from tests.probe import probe_triton, write_probe_repository
from tests.servers import ROOT, metric, wait_for

RECOVERY_S = 10.0
STEADY_ANSWERS = 20
"""So many good answers in a row are called recovered."""
WARM_S = 4.0
"""A process this old under load has what it needs: growth is counted from there."""
MAY_GROW = {"MiB": 32.0, "descriptors": 16.0, "threads": 6.0}
"""Answers under way at the moment of a look hold some of each; a leak passes this within a minute."""


@dataclass(frozen=True)
class Look:
    """What a process held at a moment (monotonic seconds)."""

    at: float
    held: dict[str, float]


@dataclass
class Figures:
    """All that is printed, and written as JSON."""

    seconds: float
    seed: int
    requests: dict[str, int]
    faults: dict[str, int]
    latency_ms: dict[str, float]
    recovery_s: float
    grown: dict[str, dict[str, float]]
    retries: float
    violations: list[str] = field(default_factory=list)


class Watch:
    """Looks at the gateway's processes twice a second."""

    def __init__(self, gateway: psutil.Process) -> None:
        self.looks: dict[int, list[Look]] = {}
        self._gateway = gateway
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def grown(self) -> dict[str, dict[str, float]]:
        """Of every process that lived to the end: how much more it held at last than when it was warm."""
        alive = {self._gateway.pid: "parent", **{each.pid: f"worker {each.pid}" for each in workers(self._gateway)}}
        grown = {}
        for pid, name in alive.items():
            looks = self.looks.get(pid, [])
            warm = [look for look in looks if look.at > looks[0].at + WARM_S]
            if len(warm) > 2:
                grown[name] = {key: round(warm[-1].held[key] - warm[0].held[key], 1) for key in MAY_GROW}
        return grown

    def _look_on(self) -> None:
        while not self._over.wait(0.5):
            for each in (self._gateway, *workers(self._gateway)):
                with suppress(psutil.NoSuchProcess):
                    memory = each.memory_info().rss / 2**20
                    held = {"MiB": memory, "descriptors": each.num_fds(), "threads": each.num_threads()}
                    self.looks.setdefault(each.pid, []).append(Look(time.monotonic(), held))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long things are broken")
    parser.add_argument("--seed", type=int, default=0, help="another seed breaks other things at other times")
    parser.add_argument("--rate", type=float, default=20, help="requests a second")
    parser.add_argument("--late", type=float, default=0.5, help="seconds that an answer may come after its deadline")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    figures = run(options.seconds, options.seed, options.rate, options.late)
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures.__dict__, indent=1) + "\n")
    return 1 if figures.violations else 0


def run(seconds: float, seed: int, rate: float, late_s: float) -> Figures:
    local.RESTART_DELAYS_S = local.RESTART_DELAYS_S[:1] * 5  # else it would wait longer for one that dies so often
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-chaos-")))
        (folder / "models").mkdir()
        repository = write_probe_repository(folder / "models")
        tritons = [stack.enter_context(probe_triton(repository)) for _ in range(2)]
        urls = [triton.url for triton in tritons]
        gateway, client = stack.enter_context(_gateway(urls, folder / "gateway.log"))
        callers = Callers(client.base_url.port or 0, pool(), seed, late_s)
        faults = Faults(gateway, seed)
        watch = Watch(gateway)
        try:
            recovery_s, violations = asyncio.run(_chaos(callers, faults, seconds, rate))
        finally:
            faults.stop()
            watch.stop()
        violations += _aftermath(client, urls, gateway, folder / "gateway.log")
        grown = watch.grown()
        retries = metric(client, "tidegate_triton_retries_total")
    violations += [asked.wrong for asked in callers.asked if asked.wrong]
    violations += [
        "a connection broke, and no worker was killed"
        for asked in callers.asked
        if asked.outcome == BROKEN and not faults.killed_a_worker(asked.at, asked.at + asked.seconds)
    ]
    for name, more in grown.items():
        violations += [f"{name} has {more[key]} more {key}" for key, most in MAY_GROW.items() if more[key] > most]
    answered = sorted(asked.seconds * 1000 for asked in callers.asked if asked.outcome in ("200", "422"))
    latency = {"p50": statistics.median(answered), "p99": answered[int(0.99 * len(answered))], "longest": answered[-1]}
    rounded = {name: round(ms, 1) for name, ms in latency.items()}
    requests = dict(sorted(callers.outcomes().items()))
    return Figures(
        seconds, seed, requests, dict(faults.counts()), rounded, round(recovery_s, 1), grown, retries, violations
    )


async def _chaos(callers: Callers, faults: Faults, seconds: float, rate: float) -> tuple[float, list[str]]:
    """The load, with faults in its middle; how long it took until all was well, and what is wrong with that."""
    stop = asyncio.Event()
    await callers.learn()
    load = asyncio.create_task(callers.ask_steadily(rate, stop))
    await asyncio.sleep(2)
    quiet = len(callers.asked)
    faults.start()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(faults.stop)
    faults.kill_the_rest()
    end = time.monotonic()
    recovery_s = await _recover(callers, end)
    await asyncio.sleep(2)
    stop.set()
    await load
    before = [asked.outcome for asked in callers.asked[:quiet] if not _good(asked.outcome)]
    violations = [f"{outcome} before anything was broken" for outcome in before]
    if recovery_s > RECOVERY_S:
        violations.append(f"all was well again only after {recovery_s:.1f} s")
    late = [asked for asked in callers.asked if asked.at > end + recovery_s and not _good(asked.outcome)]
    violations += [f"{asked.outcome} after all was well again" for asked in late]
    return recovery_s, violations


async def _recover(callers: Callers, end: float) -> float:
    """Seconds from `end` to the first of so many requests in a row that were answered."""
    while time.monotonic() < end + 3 * RECOVERY_S:
        since = sorted((asked for asked in callers.asked if asked.at > end), key=lambda asked: asked.at)
        bad = [i for i, asked in enumerate(since) if not _good(asked.outcome)]
        answered = since[bad[-1] + 1 :] if bad else since
        if len(answered) >= STEADY_ANSWERS:
            return answered[0].at - end
        await asyncio.sleep(0.1)
    return 3 * RECOVERY_S


def _good(outcome: str) -> bool:
    return outcome in ("200", "422")


def _aftermath(client: httpx.Client, urls: list[str], gateway: psutil.Process, log: Path) -> list[str]:
    """What is not as it was."""
    violations = []
    deadline = time.monotonic() + RECOVERY_S
    for url in urls:
        while metric(client, "tidegate_triton_ready", endpoint=url) != 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        if metric(client, "tidegate_triton_ready", endpoint=url) != 1:
            violations.append("an endpoint is not ready again")
    if (in_flight := metric(client, "tidegate_in_flight_images")) != 0:
        violations.append(f"{in_flight:g} images are in flight, and nobody asks")
    if len(workers(gateway)) != 2:
        violations.append("a worker is missing")
    if "Traceback" in (text := log.read_text()):
        violations.append("a traceback in the gateway's log:\n" + text[text.index("Traceback") :][:3000])
    return violations


@contextmanager
def _gateway(urls: list[str], log: Path) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    (port,) = free_ports(1)
    settings = {"PORT": port, "WORKERS": 2, "TRITON_URL": ",".join(urls), "DEFAULT_MODEL": "probe_ensemble"}
    environment = {**os.environ, **{f"TIDEGATE_{name}": str(value) for name, value in settings.items()}}
    command = [sys.executable, "-m", "gateway.cli", "serve"]
    with log.open("wb") as file, subprocess.Popen(command, cwd=ROOT, env=environment, stderr=file) as process:
        gateway = psutil.Process(process.pid)
        try:
            limits = httpx.Limits(max_keepalive_connections=0)  # the worker of a kept one may be killed
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:
                wait_for(client, "/readyz")
                yield gateway, client
        finally:
            children = gateway.children(recursive=True)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            for each in children:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.kill()


def show(figures: Figures) -> None:
    """The figures as tables."""
    total = sum(figures.requests.values())
    print(f"| answers to {total:,} requests in {figures.seconds:g} s of faults, seed {figures.seed} | |\n| --- | --- |")
    for outcome, count in figures.requests.items():
        print(f"| {outcome} | {count:,} ({count / total:.1%}) |")
    print("\n| fault | times |\n| --- | --- |")
    for name, count in sorted(figures.faults.items()):
        print(f"| {name} | {count} |")
    print("\n| figure | |\n| --- | --- |")
    for name, ms in figures.latency_ms.items():
        print(f"| answer, {name} | {ms:g} ms |")
    print(f"| all well again after the last fault | {figures.recovery_s:g} s |")
    print(f"| calls to Triton made once more | {figures.retries:g} |")
    for name, more in figures.grown.items():
        print(f"| {name} grew by | {', '.join(f'{value:g} {key}' for key, value in more.items())} |")
    print(f"| violations | {len(figures.violations)} |")
    for violation, count in Counter(figures.violations).most_common(20):
        print(f"  {count} × {violation}")


if __name__ == "__main__":
    sys.exit(main())
