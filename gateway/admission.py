"""A permit, or `Overloaded`: bounds the images and bytes in flight, so that latency stays bounded too.

Triton's ensembles cannot refuse work well: every step queues by itself. So the gate refuses, at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.errors import DeadlineExceeded, Overloaded
from gateway.observe import metrics


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


class Admission:
    """Budgets for what may be in flight in this worker at one time, in images and in bytes of request bodies."""

    def __init__(self, max_images: int, max_bytes: int) -> None:
        self._max_images = max_images
        self._max_bytes = max_bytes
        self._images = 0
        self._bytes = 0
        self._seconds_an_image = 0.02  # a first guess; follows what was measured

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Holds memory for a request: call what it yields for every chunk, with the bytes that came.

        The call raises `Overloaded` when the bodies of all requests together would pass the budget.
        """
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            if held != self._bytes and self._bytes + size > self._max_bytes:  # alone, a request may be larger
                raise self._overloaded()
            held += size
            self._bytes += size

        try:
            yield grow
        finally:
            self._bytes -= held

    @contextmanager
    def permit(self, images: int) -> Iterator[None]:
        """Holds a place for a request's images; raises `Overloaded` when they do not fit beside the others'.

        A request that is larger than the whole budget is let in when it is alone.
        """
        if self._images and self._images + images > self._max_images:
            raise self._overloaded()
        self._images += images
        metrics.IN_FLIGHT.inc(images)
        start, ahead = time.monotonic(), self._images
        try:
            yield
        finally:
            self._images -= images
            metrics.IN_FLIGHT.dec(images)
            measured = (time.monotonic() - start) / max(ahead, 1)
            self._seconds_an_image += 0.1 * (measured - self._seconds_an_image)

    def _overloaded(self) -> Overloaded:
        metrics.REJECTED.labels("overloaded").inc()
        wait = max(1.0, self._images * self._seconds_an_image)
        return Overloaded("The gateway holds as much work as it can finish in time.", retry_after=wait)
