"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from tidegate.errors import InputsError
from tidegate.inputs import Skipped, Sources

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY_S = 10.0


class Tally:
    """Counts of inputs: `answered` and `failed` now, `known` from before; `total` once it is known."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.known = 0
        self.total: int | None = None
        self._lock = threading.Lock()

    def count(self, *, answered: int = 0, failed: int = 0, known: int = 0) -> None:
        """So many more; from any thread."""
        with self._lock:
            self.answered += answered
            self.failed += failed
            self.known += known

    @property
    def now(self) -> int:
        """Inputs of which this run learned something."""
        return self.answered + self.failed

    @property
    def done(self) -> int:
        """Inputs that have a row."""
        return self.now + self.known


class Display(Protocol):
    """Where a person looks."""

    def show(self, tally: Tally, limit: int, pause_s: float) -> None:
        """How far it is; `limit` requests may be under way, and none for `pause_s` seconds."""

    def close(self) -> None:
        """The end, whichever."""


class Silent:
    """Nowhere."""

    def show(self, tally: Tally, limit: int, pause_s: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """A line every `every_s` seconds."""

    def __init__(
        self, every_s: float = LINE_EVERY_S, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s = every_s
        self._file = file or sys.stderr
        self._clock = clock
        self._began = self._last = clock()
        self._before = 0

    def show(self, tally: Tally, limit: int, pause_s: float) -> None:
        now = self._clock()
        if now - self._last < self._every_s:
            return
        rate = (tally.now - self._before) / (now - self._last)
        self._last, self._before = now, tally.now
        of = f" of {tally.total:,} ({tally.done / max(1, tally.total):.0%})" if tally.total is not None else ""
        parts = [
            f"{tally.done:,}{of}",
            f"{rate:,.1f} a second",
            f"{tally.failed:,} errors",
            f"{limit} requests at once",
        ]
        if pause_s:
            parts.append(f"the gateway asked for a pause of {pause_s:,.0f} s more")
        elif tally.total is not None and tally.now:
            left = (tally.total - tally.done) * (now - self._began) / tally.now
            parts.append(f"{duration(left)} left")
        with suppress(OSError):  # a log on a full disk
            print(", ".join(parts), file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class Bar:
    """A bar with rate, errors and time left, by tqdm."""

    def __init__(self, bar: tqdm[None]) -> None:
        self._bar = bar
        self._known = self._now = 0

    def show(self, tally: Tally, limit: int, pause_s: float) -> None:
        if tally.total != self._bar.total:
            self._bar.total = tally.total
        known, self._known = tally.known - self._known, tally.known
        self._bar.initial += known  # so that what was known before is no part of the rate
        self._bar.n += known
        note = f"errors: {tally.failed:,}, requests at once: {limit}"
        self._bar.set_postfix_str(note + (f", pause: {pause_s:.0f} s" if pause_s else ""), refresh=False)
        now, self._now = tally.now - self._now, tally.now
        self._bar.update(now)
        self._bar.refresh()

    def close(self) -> None:
        """The bar stays as it is."""
        self._bar.close()


def count_ahead(sources: Sources, tally: Tally) -> threading.Event:
    """Counts the inputs by a walk of its own, beside the work; ends early when the event is set."""
    ended = threading.Event()

    def count() -> None:
        found = 0
        with suppress(InputsError):  # the other walk says it
            for _ in sources.walk(Skipped()):
                found += 1
                if found % 1000 == 0 and ended.is_set():
                    return
            tally.total = found

    if sources.repeatable:
        threading.Thread(target=count, name="tidegate-count", daemon=True).start()
    return ended


def duration(seconds: float) -> str:
    """Such as `48 s`, `12 min 30 s`, `3 h 20 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
