"""Threads that take the first pieces of all requests before the second of any: a long request waits for itself."""

import itertools
import threading
from collections.abc import Callable
from queue import PriorityQueue

_LAST = float("inf")


class FairPool:
    """`threads` threads; work is done in the order of its turn, of equal turns what came first."""

    def __init__(self, threads: int, name: str) -> None:
        self._queue: PriorityQueue[tuple[float, int, Callable[[], None]]] = PriorityQueue()
        self._arrival = itertools.count()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, turn: int, work: Callable[[], None]) -> None:
        """Do it later; `turn` counts the pieces of one request, from 0. `work` must not raise."""
        self._queue.put((turn, next(self._arrival), work))

    def shutdown(self) -> None:
        """Return when all work is done."""
        for _ in self._threads:
            self._queue.put((_LAST, next(self._arrival), _nothing))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            turn, _, work = self._queue.get()
            if turn == _LAST:
                return
            work()


def _nothing() -> None:
    pass
