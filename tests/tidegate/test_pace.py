"""How many requests are under way; all clocks are simulated."""

from __future__ import annotations

import asyncio
import heapq

import pytest

from tidegate.pace import CEILING, Concurrency, Pace


def drive(
    concurrency: Concurrency,
    *,
    alone_s: float,
    most_a_second: float,
    seconds: float,
    refuse_above: float = float("inf"),
) -> list[int]:
    """The limits over time, against a gateway that answers one request in `alone_s`, at most `most_a_second`, and
    refuses within a millisecond what comes while it has `refuse_above`."""
    now, free_at, limits = 0.0, 0.0, []
    under_way: list[tuple[float, float, bool]] = []
    while now < seconds:
        while len(under_way) < concurrency.limit:
            if sum(answered for _, _, answered in under_way) >= refuse_above:
                heapq.heappush(under_way, (now + 0.001, now, False))
            else:
                free_at = max(now, free_at) + 1 / most_a_second
                heapq.heappush(under_way, (max(now + alone_s, free_at), now, True))
        now, sent, answered = heapq.heappop(under_way)
        if answered:
            concurrency.answered(16, sent, now)
        else:
            concurrency.refused(sent, now)
        limits.append(concurrency.limit)
    return limits


@pytest.mark.parametrize("alone_s", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("enough", [1, 4, 10, 30])
def test_it_finds_what_a_gateway_can_carry(alone_s: float, enough: int) -> None:
    """With requests of `alone_s`, `enough` of them at once use all of it: it ends there, give or take a step, and
    reaches most of the rate that can be had."""
    limits = drive(Concurrency(), alone_s=alone_s, most_a_second=enough / alone_s, seconds=120)
    late = limits[len(limits) // 2 :]
    assert min(late) >= 0.75 * enough
    assert max(late) <= 2 * enough + 2


def test_it_grows_as_long_as_that_pays() -> None:
    """Up to the ceiling, and not beyond; within seconds, because it doubles at first."""
    limits = drive(Concurrency(), alone_s=0.05, most_a_second=10_000, seconds=10)
    assert limits[-1] == max(limits) == CEILING
    assert drive(Concurrency(ceiling=5), alone_s=0.05, most_a_second=10_000, seconds=10)[-1] == 5


def test_it_stays_below_what_is_refused() -> None:
    """A gateway that takes ten requests and refuses the eleventh: half of ten is used at least, and it is refused
    eight times in two minutes at most, because what was refused is not tried again for a while."""
    refused: list[float] = []

    class Counting(Concurrency):
        def refused(self, sent: float, now: float) -> None:
            refused.append(now)
            super().refused(sent, now)

    limits = drive(Counting(), alone_s=0.1, most_a_second=10_000, seconds=120, refuse_above=10)
    late = limits[len(limits) // 2 :]
    assert min(late) >= 5
    assert len({round(at) for at in refused}) <= 8


def test_requests_that_were_refused_together_count_once() -> None:
    """Sixteen refusals of one moment are one message, not sixteen: it is halved once; a later one halves it again."""
    concurrency = Concurrency(start=16)
    for _ in range(16):
        concurrency.refused(sent=1.0, now=2.0)
    assert concurrency.limit == 8
    concurrency.refused(sent=2.5, now=3.0)
    assert concurrency.limit == 4
    for later in range(4, 10):
        concurrency.refused(sent=later, now=later + 0.5)
    assert concurrency.limit == 1


def test_it_finds_back_after_a_refusal() -> None:
    """A gateway that was busy for a moment gets as much again, a quarter more at a time."""
    concurrency = Concurrency()
    drive(concurrency, alone_s=0.05, most_a_second=10_000, seconds=10)
    concurrency.refused(sent=11.0, now=11.0)
    assert concurrency.limit == CEILING // 2
    assert drive(concurrency, alone_s=0.05, most_a_second=10_000, seconds=120)[-1] == CEILING


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def test_no_more_turns_than_the_limit() -> None:
    """Who comes when all are taken waits until one is given back, also by one that failed."""

    async def scenario() -> None:
        pace = Pace(fixed=3)
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with pace.turn() as turn:
                most = max(most, pace.under_way)
                await asyncio.sleep(0)
                if number % 4 == 0:
                    raise ValueError
                turn.answered(1)

        done = await asyncio.gather(*map(one, range(20)), return_exceptions=True)
        assert sum(isinstance(each, ValueError) for each in done) == 5
        assert (most, pace.under_way, pace.limit) == (3, 0, 3)

    asyncio.run(scenario())


def test_who_is_cancelled_while_waiting_takes_no_turn() -> None:
    """And keeps nobody else from one."""

    async def scenario() -> None:
        pace = Pace(fixed=1)

        async def one() -> None:
            async with pace.turn():
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[1].cancelled()
        assert tasks[2].exception() is None
        assert pace.under_way == 0

    asyncio.run(scenario())


def test_retry_after_holds_for_everybody() -> None:
    """Nothing is sent before the time that the gateway named; of two such times the later one counts."""

    async def scenario() -> None:
        clock = Clock()
        pace = Pace(fixed=4, clock=clock, sleep=clock.sleep)
        async with pace.turn() as turn:
            turn.refused(30.0)
            turn.refused(2.0)
        assert pace.pause_s == 30
        async with pace.turn():
            assert clock.now == 130
        assert pace.pause_s == 0

    asyncio.run(scenario())
