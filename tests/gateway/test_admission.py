"""Permits and deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.admission import LEAST_WAITING, WAIT_S, Admission, Claim, Deadline
from gateway.errors import DeadlineExceeded, Overloaded


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def claim(images: int, caller: str = "", model: str = "m", batch: int = 8) -> Claim:
    return Claim(images, model, batch, caller)


def door(max_images: int = 16, target_s: float = 60) -> Admission:
    return Admission(max_images, 1000, target_s)


async def refused(admission: Admission, wanted: Claim) -> Overloaded:
    with pytest.raises(Overloaded) as error:
        async with admission.permit(wanted):
            raise AssertionError("must not be let in")
    return error.value


async def holding(admission: Admission, wanted: Claim, until: asyncio.Event, order: list[str] | None = None) -> None:
    async with admission.permit(wanted):
        if order is not None:
            order.append(wanted.caller)
        await until.wait()


def test_more_images_than_the_budget_are_refused() -> None:
    """Images are bounded; what was held is free again afterwards."""

    async def test() -> None:
        admission = door()
        async with admission.permit(claim(10, "a")):
            assert (await refused(admission, claim(7, "b"))).retry_after >= 1
            async with admission.permit(claim(6, "b")):
                pass
        async with admission.permit(claim(16)):
            pass

    run(test())


def test_a_place_that_becomes_free_in_time_is_waited_for() -> None:
    """Nobody is refused for a moment's crowd."""

    async def test() -> None:
        admission, until = door(), asyncio.Event()
        first = asyncio.create_task(holding(admission, claim(16, "a"), until))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(WAIT_S / 8, until.set)
        async with admission.permit(claim(16, "b")):
            assert first.done()

    run(test())


def test_who_holds_least_comes_first() -> None:
    """A caller with many requests does not shut out one with few, whoever has waited longer."""

    async def test() -> None:
        admission, order = door(), list[str]()
        ends = [asyncio.Event() for _ in range(3)]
        running = [
            asyncio.create_task(holding(admission, claim(n, "hog"), e)) for n, e in zip((7, 7), ends, strict=False)
        ]
        other = asyncio.create_task(holding(admission, claim(2, "third"), ends[2]))
        await asyncio.sleep(0)
        late = [asyncio.create_task(holding(admission, claim(3, c), ends[2], order)) for c in ("hog", "modest")]
        await asyncio.sleep(0)
        ends[0].set()
        await asyncio.sleep(WAIT_S / 8)
        assert order == ["modest", "hog"]
        ends[1].set()
        ends[2].set()
        await asyncio.gather(*running, *late, other)

    run(test())


def test_one_caller_does_not_get_everything() -> None:
    """An eighth of the budget is for somebody else."""

    async def test() -> None:
        admission = door()
        async with admission.permit(claim(14, "hog")):
            assert (await refused(admission, claim(1, "hog"))).retry_after >= 1
            async with admission.permit(claim(2, "modest")):
                pass

    run(test())


def test_who_waits_is_bounded() -> None:
    """Beyond that there is no waiting; but somebody who holds less takes the place of one who holds more."""

    async def test() -> None:
        admission, never = door(max_images=100), asyncio.Event()
        async with admission.permit(claim(80, "hog")), admission.permit(claim(20, "other")):
            crowd = [asyncio.create_task(holding(admission, claim(1, "hog"), never)) for _ in range(LEAST_WAITING)]
            await asyncio.sleep(0)
            start = time.monotonic()
            await refused(admission, claim(1, "hog"))
            assert time.monotonic() - start < WAIT_S / 2
            modest = asyncio.create_task(holding(admission, claim(1, "modest"), never))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [task.done() for task in crowd].count(True) == 1
            results = await asyncio.gather(*crowd, modest, return_exceptions=True)
            assert {type(result) for result in results} == {Overloaded}

    run(test())


def test_who_leaves_while_waiting_takes_nothing() -> None:
    """Neither before nor just after its turn came."""

    async def test() -> None:
        admission, never = door(), asyncio.Event()
        async with admission.permit(claim(16, "a")):
            early, late = (asyncio.create_task(holding(admission, claim(16, c), never)) for c in "bc")
            await asyncio.sleep(0)
            early.cancel()
            await asyncio.sleep(0)
        late.cancel()  # its place has been given to it, and it has not run since
        assert {type(r) for r in await asyncio.gather(early, late, return_exceptions=True)} == {asyncio.CancelledError}
        async with admission.permit(claim(16)):
            pass

    run(test())


def test_no_images_need_no_place() -> None:
    """A request whose images are all bad is answered in the worst crowd."""

    async def test() -> None:
        admission = door()
        start = time.monotonic()
        async with admission.permit(claim(16)), admission.permit(claim(0)):
            assert time.monotonic() - start < WAIT_S

    run(test())


def test_a_slow_model_gets_fewer_places() -> None:
    """So many as it answers in time, a full batch at least; another model's places are its own."""

    async def test() -> None:
        admission = door(max_images=100, target_s=0.05)
        async with admission.permit(claim(50, "a")):
            await asyncio.sleep(0.2)
        async with admission.permit(claim(8, "a")):
            await refused(admission, claim(50, "b"))
            async with admission.permit(claim(50, "b", model="other")):
                pass

    run(test())


def test_bodies_are_counted_while_they_arrive() -> None:
    """The bodies of all requests together are bounded, chunk by chunk, and given back at their end."""
    admission = door()
    with admission.hold() as first, admission.hold() as second:
        first(600)
        second(400)
        with pytest.raises(Overloaded):
            second(1)
        with pytest.raises(Overloaded):
            first(1)
    with admission.hold() as third:
        third(1000)


def test_each_triton_has_a_full_batch() -> None:
    """One of several that hangs is no reason to starve the others."""

    async def test() -> None:
        admission = Admission(100, 1000, 0.05, tritons=3)
        async with admission.permit(claim(24, "a")):
            await asyncio.sleep(0.2)
        async with admission.permit(claim(20, "a")), admission.permit(claim(4, "b")):
            await refused(admission, claim(1, "c"))

    run(test())


def test_a_request_larger_than_the_budget_is_let_in_alone() -> None:
    """Else it could never be answered."""

    async def test() -> None:
        admission = door()
        async with admission.permit(claim(20)):
            await refused(admission, claim(1))
        with admission.hold() as grow:
            grow(5000)
            grow(5000)

    run(test())


def test_a_failure_gives_its_permit_back() -> None:
    """An exception inside does not leak budget."""

    async def test() -> None:
        admission = door(max_images=1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with admission.permit(claim(1)):
                    raise ZeroDivisionError

    run(test())


def test_deadline() -> None:
    """A deadline tells what is left, and says so when nothing is."""
    assert 9 < Deadline.after(10).remaining() <= 10
    with pytest.raises(DeadlineExceeded):
        Deadline.after(-0.1).remaining()
