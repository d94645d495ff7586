"""How much a caller may ask: images in a window of time, counted in this worker's memory, or in Redis for several.

The window slides: what was counted in the one before weighs as much as still overlaps. So a caller costs two numbers,
however many images its limit is. This is the rule of the library `limits`, whose script counts in Redis; its own
storage in memory looks through all callers at every hit, so `Memory` stands in its place.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import RateLimited
from gateway.observe import metrics

log = logging.getLogger(__name__)

CALLERS = 100_000
"""Counts that are kept in memory, some 25 MB; the one that was used least lately is forgotten first."""
AWAY_S = 1.0
"""Seconds until a shared storage that failed is asked again."""


@dataclass(frozen=True)
class Limit:
    """At most `images` in any `seconds`, and the operator's words for it."""

    images: int
    seconds: int
    words: str


class WindowsAway(Exception):
    """A storage that cannot count now."""


class Windows(Protocol):
    """Counts by key and window. Raises `WindowsAway`. The names are those of the storages in `limits`."""

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts `amount`, if that stays within `limit` in `expiry` seconds."""
        ...

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The count of the window before, and the seconds for which it still weighs; the same of this window."""
        ...

    async def close(self) -> None: ...


class Memory:
    """`Windows` of this process, with `callers` keys at most."""

    def __init__(self, callers: int = CALLERS, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, int, int]] = OrderedDict()  # number of the window, before it, in it

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        window, before, count, overlap = self._at(key, expiry)
        if math.floor(before * overlap) + count + amount > limit:
            return False
        self._counts[key] = (window, before, count + amount)
        self._counts.move_to_end(key)
        if len(self._counts) > self._callers:
            self._counts.popitem(last=False)
        return True

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        _, before, count, overlap = self._at(key, expiry)
        return before, overlap * expiry, count, (overlap + 1) * expiry

    async def close(self) -> None:
        pass

    def _at(self, key: str, expiry: int) -> tuple[int, int, int, float]:
        number, passed = divmod(self._clock() / expiry, 1)
        window = int(number)
        known, before, count = self._counts.get(key, (window, 0, 0))
        if known != window:
            before, count = (count if known == window - 1 else 0), 0
        return window, before, count, 1 - passed


class Rates:
    """Every caller's limits, counted in `shared` if there is one; while that is away, each worker counts its own."""

    def __init__(
        self,
        limits: Sequence[Limit] = (),
        shared: Windows | None = None,
        *,
        own: Windows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # A caller that a short window refuses must not pay for it in a long one.
        self._limits = sorted(limits, key=lambda limit: limit.seconds)
        self._shared = shared
        self._own = own or Memory()
        self._clock = clock
        self._ask_again_at = float("-inf")
        self._away = False
        if shared is not None:
            metrics.RATE_STORAGE_UP.labels("redis").set(1)

    async def enter(self, identity: str) -> None:
        """Counts a request's first image, before its body is read; raises `RateLimited`."""
        for limit in self._limits:
            await self._take(limit, identity, 1)

    async def add(self, identity: str, images: int) -> None:
        """Counts the others, once it is known that there are `images`; raises `RateLimited`.

        A request of more images than a limit has takes the whole limit: else it could never be made.
        """
        for limit in self._limits:
            if (others := min(images, limit.images) - 1) > 0:
                await self._take(limit, identity, others)

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()

    async def _take(self, limit: Limit, identity: str, images: int) -> None:
        if self._shared is not None and self._clock() >= self._ask_again_at:
            try:
                wait = await _wait(self._shared, limit, identity, images)
                self._note(None)
            except WindowsAway as error:
                self._note(error)
                wait = await _wait(self._own, limit, identity, images)
        else:
            wait = await _wait(self._own, limit, identity, images)
        if wait:
            metrics.REJECTED.labels("rate_limited").inc()
            raise RateLimited(f"The limit is {limit.words}.", retry_after=wait)

    def _note(self, error: WindowsAway | None) -> None:
        if error is not None:
            self._ask_again_at = self._clock() + AWAY_S
        if (error is not None) == self._away:
            return
        self._away = error is not None
        metrics.RATE_STORAGE_UP.labels("redis").set(not self._away)
        if error is not None:
            log.error("The storage of rates is away; each worker counts its own", extra={"reason": str(error)})
        else:
            log.info("The storage of rates is back")


async def _wait(windows: Windows, limit: Limit, identity: str, images: int) -> int:
    """0 when the images were counted; else whole seconds after which they would be, if nothing else comes."""
    key = f"{identity}/{limit.images}/{limit.seconds}"
    if await windows.acquire_sliding_window_entry(key, limit.images, limit.seconds, images):
        return 0
    before, before_s, count, count_s = await windows.get_sliding_window(key, limit.seconds)
    room = limit.images - images - count
    if room >= 0:  # enough of the window before must have slid out
        seconds = before_s - (room + 1) * limit.seconds / max(1, before)
    else:  # this window must end, and then slide out so far
        seconds = count_s - (limit.images - images + 1) * limit.seconds / count
    return max(0, math.floor(seconds)) + 1
