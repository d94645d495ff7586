"""Costly pictures are decoded in processes of their own, `decoder.py`, where the kernel bounds time and memory.

A decoder is C code that cannot be interrupted in a thread; a process can be ended, by its limits or by a fault
of the decoder, and costs its own picture only.
"""

import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

_ENDS = frozenset({signal.SIGPROF, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
_STUCK_S = 60.0  # by the clock on the wall: longer than any machine is that busy; it waits for something
_GRACE_S = 1.0  # after the time of a request, for what is nearly done
_TRIES = 3  # somebody else may kill a process too, such as a kernel that is out of memory

Answer = tuple[int, "npt.NDArray[np.uint8] | None"]


class Ended(Exception):
    """A picture took more than a process may take, or brought the decoder down."""


class Guard:
    """A pool of decoder processes, as many as there are callers at one time; idle ones are kept for the next picture.

    Each may use `cpu_seconds` of processor time for a picture, and `memory` bytes beyond its own program.
    """

    def __init__(self, recipe: str, size: int, *, cpu_seconds: float, memory: int, stuck_s: float = _STUCK_S) -> None:
        self._order = {"recipe": recipe, "cpu_seconds": cpu_seconds, "memory": memory}
        self._size = size
        self._stuck_s = stuck_s
        self._lock = threading.Lock()
        self._idle: list[_Decoder] = []
        self._busy: dict[_Decoder, float] = {}
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="decoder-watch", daemon=True).start()

    def preprocess(self, file: memoryview, max_pixels: int, until: float = math.inf) -> Answer:
        """Status and, if that is 0, pixels (size, size, 3) uint8. Raises Ended, or RuntimeError for a fault of ours.

        A decoder that has not answered soon after `until`, on the monotonic clock, is killed: nobody waits for it.
        """
        for _ in range(_TRIES):
            decoder = self._take(until)
            try:
                answer = decoder.ask(file, max_pixels, self._size)
            finally:
                with self._lock:
                    del self._busy[decoder]
            if answer is not None:
                self._give_back(decoder)
                return answer
            end = decoder.end()
            if decoder.stuck:
                self._end_idle(kill=True)  # what has stopped one may have stopped them all
                raise RuntimeError("the decoder did not answer in time and was killed")
            if -end in _ENDS:
                raise Ended(signal.Signals(-end).name)
            if end >= 0:
                raise RuntimeError(f"the decoder exited with code {end}")
        raise RuntimeError("the decoder was killed again and again")

    def close(self) -> None:
        """End the idle processes; busy ones end by themselves after their picture."""
        self._closed.set()
        self._end_idle()

    def _end_idle(self, *, kill: bool = False) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for decoder in idle:
            if kill:
                decoder.kill()
            decoder.end()

    def _take(self, until: float) -> "_Decoder":
        with self._lock:
            decoder = self._idle.pop() if self._idle else None
        decoder = decoder or _Decoder(self._order)
        with self._lock:
            self._busy[decoder] = min(time.monotonic() + self._stuck_s, until + _GRACE_S)
        return decoder

    def _give_back(self, decoder: "_Decoder") -> None:
        with self._lock:
            if not self._closed.is_set() and not decoder.stuck:  # it may have been killed as it answered
                self._idle.append(decoder)
                return
        decoder.end()

    def _watch(self) -> None:
        """The kernel counts processor time; a process that is stopped or waits uses none."""
        while not self._closed.wait(min(_GRACE_S, self._stuck_s / 10)):
            with self._lock:
                for decoder, end in self._busy.items():
                    if time.monotonic() > end:
                        decoder.kill()


class _Decoder:
    """One process; it ends when its standard input does, so it cannot outlive this one."""

    def __init__(self, order: dict[str, object]) -> None:
        self.stuck = False
        self._process = subprocess.Popen(
            [_interpreter(), "-I", str(Path(__file__).with_name("decoder.py")), *filter(None, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's own threads would reserve memory, for nothing
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        self._to.write(json.dumps(order).encode() + b"\n")

    def ask(self, file: memoryview, max_pixels: int, size: int) -> "Answer | None":
        """None when the process ended instead."""
        try:
            self._to.write(struct.pack("<qq", len(file), max_pixels))
            self._to.write(file)
            self._to.flush()
        except BrokenPipeError:
            return None
        status = self._from.read(4)
        if len(status) < 4:
            return None
        if any(status):
            return int.from_bytes(status, "little"), None
        pixels = self._from.read(size * size * 3)
        return (0, np.frombuffer(pixels, np.uint8).reshape(size, size, 3)) if len(pixels) == size * size * 3 else None

    def kill(self) -> None:
        """Because it is stuck; whoever waits for its answer gets none."""
        self.stuck = True
        self._process.kill()

    def end(self) -> int:
        """Wait for the end, which an idle process is sent to; its exit code, or minus the signal that ended it."""
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        return self._process.wait()


def _interpreter() -> str:
    """The Python that this one belongs to: Triton's stub has it built in."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [sys.executable, *(str(Path(folder, "bin", version)) for folder in (sys.prefix, sys.base_prefix))]
    for place in places:
        if Path(place).name.startswith("python") and Path(place).is_file():
            return place
    raise RuntimeError(f"the decoder of pictures needs an interpreter; there is none at {', '.join(places)}")
