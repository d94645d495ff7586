"""Damaged files are everyday here: libraries report them to us, not to the log of the process."""

import logging
import threading
import warnings
from types import TracebackType


class Silence:
    """`warnings.catch_warnings` for many threads at once: the first one in starts it, the last one out ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._caught.__exit__(kind, error, trace)


def silence_pillow() -> None:
    """Stop what does not go through `warnings`: Pillow's logger."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
