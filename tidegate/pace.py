"""How many requests are under way at one time, and when none may be sent.

A gateway does not say how many requests it likes best, and it changes with whoever else asks. So it is found out, as
TCP finds out what a network carries:

- It begins with two. After a round (twice as many answers as requests may be under way, half a second at least) it is
  doubled; if that made the rate, in images a second, grow by a quarter or more, it is doubled again.
- The first time that more requests did not bring a quarter of what they would bring if the rate grew with their
  number, the number from before is taken again. From then on a quarter more is tried now and then.
- When the gateway is busy (503, 429, 504) or a connection breaks it is halved, once for all requests that were under
  way together; and for half a minute or more as many as then are not tried again.

`Retry-After` holds for everybody: until then nothing is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

START = 2
CEILING = 64
"""Requests under way at most: a gateway answers some 1,000 images a second per process, 16 of them in a request."""
ROUND_S = 0.5
"""Seconds of a round at least: shorter ones measure little but chance."""
ROUND_ANSWERS = 8
PAYS = 0.25
"""Of a growth in proportion to the number of requests, what must have come for it to pay."""
STEP = 0.25
REST_ROUNDS = 10
"""Rounds between two tries of a larger number: of five seconds or more together."""
SHY_ROUNDS = 60
"""Rounds in which a number that was refused is not tried again."""


class Concurrency:
    """The number itself: `limit`, after what it was told of answers and refusals, with their times in seconds."""

    def __init__(self, start: int = START, ceiling: int = CEILING) -> None:
        self.limit = min(start, ceiling)
        self._ceiling = ceiling
        self._doubling = True
        self._rest = self._shy = 0
        self._too_many = ceiling + 1
        self._rate: float | None = None
        self._tried_from: int | None = None
        self._cut_at = float("-inf")
        self._begin(None)

    def _begin(self, now: float | None) -> None:
        self._since, self._answers, self._images = now, 0, 0

    def answered(self, images: int, sent: float, now: float) -> None:
        """A request of so many images, sent at `sent`, was answered."""
        if self._since is None:
            self._since = sent
        self._answers += 1
        self._images += images
        if self._answers >= max(ROUND_ANSWERS, 2 * self.limit) and now - self._since >= ROUND_S:
            rate = self._images / (now - self._since)
            self._begin(now)
            self._judge(rate)

    def refused(self, sent: float, now: float) -> None:
        """A request sent at `sent` found the gateway busy, or did not come through."""
        if sent < self._cut_at:
            return  # it was under way with one that was refused before
        self._too_many, self._shy = max(2, self.limit), SHY_ROUNDS
        self.limit = max(1, self.limit // 2)
        self._cut_at = now
        self._doubling, self._tried_from, self._rate, self._rest = False, None, None, REST_ROUNDS
        self._begin(None)

    def _judge(self, rate: float) -> None:
        self._shy -= 1
        most = self._ceiling if self._shy <= 0 else min(self._ceiling, self._too_many - 1)
        if self._tried_from is not None and self._rate is not None:
            paid = rate >= self._rate * (1 + PAYS * (self.limit / self._tried_from - 1))
            if not paid:
                self.limit = self._tried_from
                self._doubling, self._tried_from, self._rest = False, None, REST_ROUNDS
                return  # this rate was another number's
            self._rate = rate
        else:
            self._rate = rate if self._rate is None else 0.7 * self._rate + 0.3 * rate
            self._rest -= 1
            if self._rest > 0:
                return
        self._tried_from = self.limit
        larger = 2 * self.limit if self._doubling else self.limit + max(1, int(STEP * self.limit))
        self.limit = max(self.limit, min(most, larger))
        if self.limit == self._tried_from:
            self._tried_from, self._rest = None, REST_ROUNDS


class Turn:
    """Permission to send one request; say how it went."""

    def __init__(self, pace: Pace, sent: float) -> None:
        self._pace, self._sent = pace, sent

    def answered(self, images: int) -> None:
        """It was answered, with so many images in it."""
        self._pace.answered(images, self._sent)

    def refused(self, retry_after: float | None) -> None:
        """It was not; with the seconds of `Retry-After`, if the gateway said so."""
        self._pace.refused(self._sent, retry_after)


class Pace:
    """Gives turns to requests: as many at one time as `limit`, and none before `Retry-After`.

    `fixed` is a number that stays; without it the number is found out, up to `ceiling`.
    """

    def __init__(
        self,
        fixed: int | None = None,
        ceiling: int = CEILING,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._fixed = fixed
        self._found_out = Concurrency(ceiling=ceiling)
        self._clock = clock
        self._sleep = sleep
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._not_before = float("-inf")

    @property
    def limit(self) -> int:
        """How many requests may be under way."""
        return self._fixed or self._found_out.limit

    @property
    def under_way(self) -> int:
        """How many are."""
        return self._under_way

    @property
    def pause_s(self) -> float:
        """Seconds until anything may be sent, by what the gateway said."""
        return max(0.0, self._not_before - self._clock())

    def answered(self, images: int, sent: float) -> None:
        self._found_out.answered(images, sent, self._clock())

    def refused(self, sent: float, retry_after: float | None) -> None:
        now = self._clock()
        self._found_out.refused(sent, now)
        if retry_after:
            self._not_before = max(self._not_before, now + retry_after)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Waits until a request may be sent."""
        while True:
            if self.pause_s > 0:
                await self._sleep(self.pause_s)
            elif self._under_way < self.limit:
                break
            else:
                await self._next_change()
        self._under_way += 1
        try:
            yield Turn(self, self._clock())
        finally:
            self._under_way -= 1
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)

    async def _next_change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        try:
            await change
        finally:
            self._waiting.remove(change)
