"""Several Tritons as one: a call goes where the fewest are under way, and never where nobody answers.

Two decisions are made here and nowhere else:

- **Where.** Every Triton is probed by `Discovery`, with a real inference; one that cannot be reached gets no call until
  a probe has succeeded. Then it gets one call at a time until the first is answered, and after a failure soon after its
  return it rests for longer each time. When all are away a call fails at once.
- **Once more.** An inference changes nothing at Triton, so one that found no connection, or lost it, may be made
  again: at once, on another Triton if there is one, in the time that is left, while the budget of retries allows it.
  One that found no model (Triton did no work then) goes to the others too. To wait for a model and ask later is
  `gateway.inference`'s decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gateway.errors import DeadlineExceeded, ModelNotReady, TidegateError, UpstreamError, UpstreamUnavailable
from gateway.observe import metrics
from gateway.triton import Answer, ModelConfig, ModelState, Tensor, Triton

SHORTEST_REST_S, LONGEST_REST_S = 0.5, 10.0
SHORTEST_RETRY_S = 0.01
"""With less time left than this a call is not made again."""
NEVER = float("-inf")


class RetryBudget:
    """Every call earns a tenth of a retry, and ten retries can be saved: an outage gets a tenth more load at most."""

    TENTHS, MOST = 10, 100

    def __init__(self) -> None:
        self._saved = self.MOST

    def earn(self) -> None:
        self._saved = min(self._saved + 1, self.MOST)

    def spend(self) -> bool:
        """Takes a retry, if there is one."""
        if self._saved < self.TENTHS:
            return False
        self._saved -= self.TENTHS
        return True


class Member:
    """One Triton of a pool: the calls under way, and what the last ones and the last probe showed."""

    def __init__(self, triton: Triton) -> None:
        self.triton = triton
        self.calls = 0
        self.away = False
        self.failed_at = NEVER
        self.doubt = asyncio.Event()
        """Set when a call failed: this Triton is worth a probe now."""
        self._unwell = False
        self._returning = False
        self._rest_s = 0.0
        self._rests_until = NEVER

    def rank(self) -> int:
        """0: as good as any. 1: only when there is no such one."""
        rests = self._returning and (self.calls > 0 or time.monotonic() < self._rests_until)
        return int(rests or self._unwell)

    def probed(self, error: TidegateError | None) -> None:
        """What a real inference by the default model came to; it may fail where another model answers."""
        self.away = isinstance(error, UpstreamUnavailable)
        self._unwell = error is not None

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        """`Triton.infer`, counted."""
        begun = time.monotonic()
        self.calls += 1
        try:
            answer = await self.triton.infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)
        except UpstreamUnavailable:
            self._leave_out(begun)
            raise
        except (UpstreamError, DeadlineExceeded):
            self.doubt.set()
            raise
        finally:
            self.calls -= 1
        self._returning, self._rest_s = False, 0.0
        return answer

    def _leave_out(self, begun: float) -> None:
        self.doubt.set()
        if begun >= self.failed_at:  # else it began before a failure that is known: that counts once
            self.away = self._returning = True
            self.failed_at = time.monotonic()
            self._rests_until = self.failed_at + self._rest_s
            self._rest_s = min(max(2 * self._rest_s, SHORTEST_REST_S), LONGEST_REST_S)


class Pool:
    """A `Triton` made of one or more, all of which should serve the same models."""

    def __init__(self, tritons: Sequence[Triton]) -> None:
        self.members = tuple(Member(triton) for triton in tritons)
        self.endpoint = ",".join(triton.endpoint for triton in tritons)
        self._in_turn = list(self.members)  # who was asked longest ago comes first
        self._budget = RetryBudget()

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        end = time.monotonic() + timeout
        self._budget.earn()
        asked: list[Member] = []
        retried = False
        while True:
            member = self._choose(asked)
            asked.append(member)
            try:
                return await member.infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)
            except UpstreamUnavailable:
                timeout = end - time.monotonic()
                if retried or timeout < SHORTEST_RETRY_S or not self._may_retry(asked):
                    raise
                retried = True
            except ModelNotReady:
                timeout = end - time.monotonic()
                if timeout < SHORTEST_RETRY_S or not self._others(asked):
                    raise

    async def index(self, *, timeout: float) -> list[ModelState]:
        return await self._choose().triton.index(timeout=timeout)

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        return await self._choose().triton.config(model, timeout=timeout)

    async def close(self) -> None:
        await asyncio.gather(*(member.triton.close() for member in self.members))

    def _may_retry(self, asked: Sequence[Member]) -> bool:
        """Takes a retry from the budget; a lone Triton is asked again itself, as only a connection may be lost."""
        if (len(self.members) > 1 and not self._others(asked)) or not self._budget.spend():
            return False
        metrics.TRITON_RETRIES.inc()
        return True

    def _others(self, asked: Sequence[Member]) -> list[Member]:
        return [member for member in self._in_turn if not member.away and member not in asked]

    def _choose(self, asked: Sequence[Member] = ()) -> Member:
        """The one with the fewest calls, in turn; raises `UpstreamUnavailable` when all are away."""
        if len(self.members) == 1:  # whether it can be reached, its channel knows best
            return self.members[0]
        others = self._others(asked)
        if not others:
            raise UpstreamUnavailable("The inference server cannot be reached.", private="no endpoint can be reached")
        member = min(others, key=lambda each: (each.rank(), each.calls))
        self._in_turn.remove(member)
        self._in_turn.append(member)
        return member
