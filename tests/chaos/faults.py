"""What is broken, when: chosen by a seed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

PAUSE_S = (1.0, 3.0)
STOPPED_S = (0.3, 4.0)
LOADING_S = 5.0
KILL_WORKER = "kill a gateway worker"
LAST = "at the end: kill both Tritons and a worker"


@dataclass(frozen=True)
class Fault:
    """What was done, and when (monotonic seconds)."""

    at: float
    name: str


class Faults:
    """A thread that breaks something every few seconds between `start` and `stop`, and mends nothing but SIGSTOP.

    The Tritons are those that this process has started.
    """

    def __init__(self, gateway: psutil.Process, seed: int) -> None:
        self.done: list[Fault] = []
        self._gateway = gateway
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._break_on)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After this nothing is stopped any more."""
        self._over.set()
        self._thread.join()

    def kill_the_rest(self) -> None:
        """The last fault: nothing is left of Triton, and a worker is gone."""
        self._do(LAST, [*self._living(), *workers(self._gateway)[:1]])

    def counts(self) -> Counter[str]:
        return Counter(fault.name for fault in self.done)

    def killed_a_worker(self, begun: float, end: float) -> bool:
        """Whether one was killed while a request was under way."""
        return any(fault.name in (KILL_WORKER, LAST) and begun <= fault.at <= end for fault in self.done)

    def _break_on(self) -> None:
        kinds: dict[str, Callable[[], list[psutil.Process]]] = {
            "kill a Triton": lambda: self._one(self._living()),
            "kill both Tritons": self._living,
            "end a Triton (SIGTERM)": lambda: self._one(self._living()),
            "stop a Triton": lambda: self._one(self._living()),
            "kill a stub": lambda: self._one(self._stubs()),
            "stop a stub": lambda: self._one(self._stubs()),
            "kill a decoder": lambda: self._one(self._decoders()),
            KILL_WORKER: lambda: self._one(workers(self._gateway)),
        }
        bag: list[str] = []
        while not self._over.wait(self._rng.uniform(*PAUSE_S)):
            bag = bag or self._rng.sample(list(kinds), len(kinds))  # all have come before one comes again
            name = bag.pop()
            with suppress(psutil.NoSuchProcess):  # it was dead already
                self._do(name, kinds[name]())

    def _do(self, name: str, targets: list[psutil.Process]) -> None:
        if targets:
            self.done.append(Fault(time.monotonic(), name))
        for process in targets:
            if name.startswith("stop"):
                process.suspend()
            else:
                process.send_signal(signal.SIGTERM if "SIGTERM" in name else signal.SIGKILL)
        if name.startswith("stop"):
            self._over.wait(self._rng.uniform(*STOPPED_S))
            for process in targets:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)

    def _living(self) -> list[psutil.Process]:
        return running("/tritonserver", psutil.Process().children())

    def _one(self, choice: list[psutil.Process]) -> list[psutil.Process]:
        return [self._rng.choice(choice)] if choice else []

    def _stubs(self) -> list[psutil.Process]:
        """Without those that may still be loading: Triton does not load a model again whose process was killed then."""
        stubs = running("triton_python_backend_stub", self._below_tritons())
        return [each for each in stubs if time.time() - each.create_time() > LOADING_S]

    def _decoders(self) -> list[psutil.Process]:
        return running("decoder.py", self._below_tritons())

    def _below_tritons(self) -> list[psutil.Process]:
        return [each for triton in self._living() for each in triton.children(recursive=True)]


def workers(gateway: psutil.Process) -> list[psutil.Process]:
    """The processes that answer requests."""
    return running("spawn_main", gateway.children())


def running(program: str, among: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that run it, of processes that may have ended by now."""
    found = []
    for process in among:
        with suppress(psutil.NoSuchProcess):
            if any(program in word for word in process.cmdline()):
                found.append(process)
    return found
