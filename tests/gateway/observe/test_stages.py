"""Stages of a request, without traces."""

from __future__ import annotations

import asyncio
import time
from contextvars import copy_context

import pytest

from gateway.observe import stages
from gateway.observe.stages import Stage, Timeline


def begun() -> Timeline:
    timeline = Timeline(time.perf_counter_ns())
    timeline.begin()
    return timeline


def inside() -> Stage:
    """What a stage's own code would do."""
    with Stage("read") as read:
        read.note({"tidegate.images": 1})
    return read


def test_a_stage_needs_no_request() -> None:
    """The same code runs in a probe or a test."""
    assert copy_context().run(inside).seconds >= 0


def test_an_answer_shows_the_stages_of_the_contract() -> None:
    """Those that ended, in their order, and the total; a trace's other stages are not among them."""

    def request() -> dict[str, float]:
        timeline = begun()
        for name in ("read", "wait", "pad", "infer"):
            with Stage(name):
                pass
        return timeline.timings()

    timings = copy_context().run(request)
    assert list(timings) == ["read", "wait", "infer", "total"]
    assert timings["total"] >= timings["read"] + timings["wait"] + timings["infer"] > 0


def test_a_stage_that_fails_is_timed() -> None:
    """Its error passes, and its time stays."""

    def request() -> dict[str, float]:
        timeline = begun()
        with pytest.raises(ValueError, match="x"), Stage("infer"):
            raise ValueError("x")
        return timeline.timings()

    assert "infer" in copy_context().run(request)


def test_one_stage_at_several_places_at_once() -> None:
    """It counts once, from the first start to the last end."""
    timeline = Timeline(0)
    timeline.add("infer", 10, 30)
    timeline.add("infer", 5, 20)
    timeline.add("infer", 15, 25)
    assert timeline.timings()["infer"] == pytest.approx(25e-9)


def test_requests_at_the_same_time_have_their_own_stages() -> None:
    """A task's stages belong to the request in whose context it was made."""

    async def call(gate: asyncio.Event) -> None:
        with Stage("infer"):
            await gate.wait()

    async def request(gate: asyncio.Event, calls: int) -> dict[str, float]:
        timeline = begun()
        with Stage("read" if calls else "wait"):
            await gate.wait()
        await asyncio.gather(*[call(gate) for _ in range(calls)])
        return timeline.timings()

    async def both() -> list[dict[str, float]]:
        gate = asyncio.Event()
        requests = [asyncio.create_task(request(gate, calls)) for calls in (0, 2)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*requests)

    first, second = asyncio.run(both())
    assert list(first) == ["wait", "total"]
    assert list(second) == ["read", "infer", "total"]


def test_nothing_is_sent_along_where_nothing_is_traced() -> None:
    """No metadata, no ids."""

    def request() -> None:
        begun()
        with Stage("infer", outgoing=True):
            stages.note({"rpc.system.name": "grpc"})
            assert stages.metadata() == ()
        assert stages.ids() == {}

    copy_context().run(request)
