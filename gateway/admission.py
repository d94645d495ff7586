"""A permit, or `Overloaded`: bounds the images and bytes in flight, so that latency stays bounded too.

Triton's ensembles cannot refuse work well: every step queues by itself. So the gate refuses, within `WAIT_S`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from gateway.errors import DeadlineExceeded, Overloaded
from gateway.limiter import Limiter
from gateway.observe import metrics

WAIT_S = 0.05
"""Seconds that a request may wait for a permit: long enough for places that are about to be free, and no queue."""
LEAST_WAITING = 8
"""So many requests may wait in any case; more, if as many images are answered meanwhile."""
SHARE = 0.875
"""Of a budget, that one caller may hold while it is larger than one request: the rest is for somebody else."""


@dataclass(frozen=True)
class Deadline:
    """A point on the monotonic clock until which an answer is worth something."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; raises `DeadlineExceeded` when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("The deadline passed before the answer was ready.")
        return left


@dataclass(frozen=True)
class Claim:
    """What a request wants to send: so many `images` to `model`, whose full batch is `batch`, for `caller`."""

    images: int
    model: str
    batch: int
    caller: str


@dataclass
class _Lane:
    """What is in flight for one model, and what may be."""

    limiter: Limiter
    images: int = 0


@dataclass(eq=False)
class _Waiting:
    claim: Claim
    lane: _Lane
    admitted: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Admission:
    """Budgets for what may be in flight in this worker at one time: images, for each model too, and bytes of bodies.

    A model that is slow gets less than `max_images`: what it answers within `target_s` seconds, and a full batch for
    each of `tritons` at least, of which one may be hung.
    """

    def __init__(self, max_images: int, max_bytes: int, target_s: float, tritons: int = 1) -> None:
        self._max_images = max_images
        self._max_bytes = max_bytes
        self._target_s = target_s
        self._tritons = tritons
        self._images = 0
        self._bytes = 0
        self._lanes: dict[str, _Lane] = {}
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Holds memory for a request: call what it yields for every chunk, with the bytes that came.

        The call raises `Overloaded` when the bodies of all requests together would pass the budget.
        """
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            if held != self._bytes and self._bytes + size > self._max_bytes:  # alone, a request may be larger
                raise self._overloaded(1.0)
            held += size
            self._bytes += size

        try:
            yield grow
        finally:
            self._bytes -= held

    def is_idle(self, images: int) -> bool:
        """Whether so many more would leave half of the places free; for work that nobody waits for."""
        return not self._waiting and self._images + images <= self._max_images / 2

    @asynccontextmanager
    async def permit(self, claim: Claim) -> AsyncIterator[None]:
        """Holds places for a request's images; raises `Overloaded` when there are none within `WAIT_S`.

        A request that is larger than the whole budget is let in when it is alone. Of those that wait, the caller
        comes first that holds least, and is refused first that holds most.
        """
        lane = self._lanes.get(claim.model) or self._lanes.setdefault(
            claim.model, _Lane(Limiter(claim.batch * self._tritons, self._max_images, self._target_s))
        )
        if claim.images == 0 or (not self._waiting and self._fits(claim, lane)):
            self._take(claim, lane)
        else:
            await self._wait(claim, lane)
        start, ahead = time.monotonic(), lane.images
        try:
            yield
        except (DeadlineExceeded, asyncio.CancelledError):
            lane.limiter.given_up(ahead, claim.images, time.monotonic() - start)
            raise
        else:
            if claim.images:
                lane.limiter.answered(ahead, claim.images, time.monotonic() - start)
        finally:
            self._give_back(claim, lane)

    def _fits(self, claim: Claim, lane: _Lane) -> bool:
        def within(held: int, budget: float) -> bool:
            return held == 0 or held + claim.images <= budget

        budget = min(self._max_images, lane.limiter.limit)
        return (
            within(self._images, self._max_images)
            and within(lane.images, lane.limiter.limit)
            and within(self._held[claim.caller], math.ceil(SHARE * budget))
        )

    def _take(self, claim: Claim, lane: _Lane) -> None:
        self._images += claim.images
        lane.images += claim.images
        self._held[claim.caller] += claim.images
        metrics.IN_FLIGHT.inc(claim.images)

    def _give_back(self, claim: Claim, lane: _Lane) -> None:
        self._images -= claim.images
        lane.images -= claim.images
        self._held[claim.caller] -= claim.images
        if not self._held[claim.caller]:
            del self._held[claim.caller]
        metrics.IN_FLIGHT.dec(claim.images)
        metrics.LIMIT.labels(claim.model).set(lane.limiter.limit)
        self._admit_waiting()

    async def _wait(self, claim: Claim, lane: _Lane) -> None:
        if len(self._waiting) >= max(LEAST_WAITING, WAIT_S / lane.limiter.seconds_an_image):
            last = max(self._waiting, key=lambda each: self._held[each.claim.caller])
            if self._held[last.claim.caller] <= self._held[claim.caller]:
                raise self._overloaded(self._drained(lane))
            self._refuse(last)
        waiting = _Waiting(claim, lane)
        self._waiting.append(waiting)
        timer = asyncio.get_running_loop().call_later(WAIT_S, self._refuse, waiting)
        try:
            admitted = await waiting.admitted
        except asyncio.CancelledError:  # the caller left
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif waiting.admitted.done() and not waiting.admitted.cancelled() and waiting.admitted.result():
                self._give_back(claim, lane)
            raise
        finally:
            timer.cancel()
        if not admitted:
            raise self._overloaded(self._drained(lane))

    def _refuse(self, waiting: _Waiting) -> None:
        if not waiting.admitted.done():
            self._waiting.remove(waiting)
            waiting.admitted.set_result(False)
            self._admit_waiting()  # it may have stood in front of a smaller one

    def _admit_waiting(self) -> None:
        while fitting := [w for w in self._waiting if not w.admitted.done() and self._fits(w.claim, w.lane)]:
            first = min(fitting, key=lambda each: self._held[each.claim.caller])
            self._waiting.remove(first)
            self._take(first.claim, first.lane)
            first.admitted.set_result(True)

    def _drained(self, lane: _Lane) -> float:
        """Seconds in which what is in flight will be answered, at the present rate."""
        return lane.images * lane.limiter.seconds_an_image

    def _overloaded(self, seconds: float) -> Overloaded:
        metrics.REJECTED.labels("overloaded").inc()
        detail = "The gateway holds as much work as it can finish in time."
        return Overloaded(detail, retry_after=max(1.0, seconds))
