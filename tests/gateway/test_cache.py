"""Answers that were given before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gateway.admission import Deadline
from gateway.cache import ARRAY_BYTES, ENTRY_BYTES, Cache, Items, Row, Rows, Values
from gateway.errors import DeadlineExceeded, ItemProblem, UpstreamUnavailable
from gateway.inference import Question
from gateway.triton.model import CLASSIFY, Model

MODEL = Model("m", "1", CLASSIFY, 8, frozenset({"P"}), ("a", "b"), certificates=({"weights": "x"},))
ROW_BYTES = 8 + ENTRY_BYTES + ARRAY_BYTES


class Engine:
    """Answers with a number that depends on the bytes and the version, and keeps what it was asked."""

    def __init__(self, model: Model = MODEL, delay: float = 0.0) -> None:
        self.model, self.delay, self.asked = model, delay, list[bytes]()
        self.failure: Exception | None = None

    async def ask(self, files: Items) -> Rows:
        self.asked += [data for _, data in files]
        await asyncio.sleep(self.delay)
        if self.failure:
            raise self.failure
        return {index: self.row(data) for index, data in files}

    def row(self, data: bytes) -> Row:
        if data == b"bad":
            return Row({}, self.model, ItemProblem("corrupt_image", ""))
        values: Values = {"P": np.array([len(data), int(self.model.version)], np.float32)}
        return Row(values, self.model)


async def answer(cache: Cache, engine: Engine, *files: bytes, seconds: float = 5) -> list[object]:
    question = Question(engine.model, ("P",))
    rows = await cache.answer(list(enumerate(files)), question, engine.ask, Deadline.after(seconds))
    assert sorted(rows) == list(range(len(files)))
    answers = [rows[i] for i in range(len(files))]
    return [row.problem.code if row.problem else row.values["P"].tolist() for row in answers]


def test_the_same_bytes_are_asked_for_once() -> None:
    """In one request, and in later ones; each image gets its own answer, in its place."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine()
        assert await answer(cache, engine, b"aa", b"b", b"aa") == [[2, 1], [1, 1], [2, 1]]
        assert await answer(cache, engine, b"ccc", b"aa") == [[3, 1], [2, 1]]
        assert engine.asked == [b"aa", b"b", b"ccc"]

    asyncio.run(test())


def test_another_engine_is_asked_anew() -> None:
    """Another version, another certificate, another name: nothing that was known counts."""

    async def test() -> None:
        cache = Cache(10**6)
        others = (
            replace(MODEL, version="2"),
            replace(MODEL, certificates=({"weights": "y"},)),
            replace(MODEL, name="n"),
        )
        for model in (MODEL, *others):
            engine = Engine(model)
            assert await answer(cache, engine, b"aa") == [[2, int(model.version)]]
            assert engine.asked == [b"aa"]

    asyncio.run(test())


def test_other_outputs_are_asked_for_anew() -> None:
    """A row of probabilities is no answer to who wants features, or both."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine()
        for outputs in (("P",), ("E",), ("E", "P")):
            await cache.answer([(0, b"aa")], Question(MODEL, outputs), engine.ask, Deadline.after(5))
        assert engine.asked == [b"aa"] * 3

    asyncio.run(test())


def test_a_version_that_is_exchanged_meanwhile_is_not_kept_under_the_old_name() -> None:
    """Its rows carry its own version, and the next request asks again."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine(replace(MODEL, version="2"))
        for _ in range(2):
            rows = await cache.answer([(0, b"aa")], Question(MODEL, ("P",)), engine.ask, Deadline.after(5))
            assert rows[0].model.version == "2"
        assert engine.asked == [b"aa", b"aa"]

    asyncio.run(test())


def test_nothing_is_kept_of_models_without_a_certificate_and_of_problems() -> None:
    """The first may change under their number, the second may be a matter of time."""

    async def test() -> None:
        cache, uncertified, engine = Cache(10**6), Engine(replace(MODEL, certificates=())), Engine()
        for _ in range(2):
            await answer(cache, uncertified, b"aa")
            assert await answer(cache, engine, b"bad", b"b") == ["corrupt_image", [1, 1]]
        assert uncertified.asked == [b"aa", b"aa"]
        assert engine.asked == [b"bad", b"b", b"bad"]

    asyncio.run(test())


@pytest.mark.parametrize("files", [[b"aa"], [b"bad"], [b"aa", b"bad", b"b"]])
def test_who_wants_the_same_meanwhile_waits_for_it(files: Sequence[bytes]) -> None:
    """Twenty at one time are one call, of problems too."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine(delay=0.02)
        answers = await asyncio.gather(*(answer(cache, engine, *files) for _ in range(20)))
        assert all(each == answers[0] for each in answers)
        assert engine.asked == list(files)

    asyncio.run(test())


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_who_waits_is_not_hurt_by_who_asked(how: str) -> None:
    """Where the first one fails or leaves, the next one asks."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine(delay=0.02)
        first = asyncio.create_task(answer(cache, engine, b"aa"))
        await asyncio.sleep(0)
        others = [asyncio.create_task(answer(cache, engine, b"aa")) for _ in range(5)]
        await asyncio.sleep(0)
        if how == "fails":
            engine.failure = UpstreamUnavailable("")
            with pytest.raises(UpstreamUnavailable):
                await first
            engine.failure = None
        else:
            first.cancel()
        assert await asyncio.gather(*others) == [[[2, 1]]] * 5
        assert engine.asked == [b"aa", b"aa"]

    asyncio.run(test())


def test_who_waits_has_a_deadline() -> None:
    """Its own, whatever the first one's is."""

    async def test() -> None:
        cache, engine = Cache(10**6), Engine(delay=0.2)
        first = asyncio.create_task(answer(cache, engine, b"aa"))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded):
            await answer(cache, engine, b"aa", seconds=0.02)
        assert await first == [[2, 1]]

    asyncio.run(test())


def test_bytes_are_bounded_and_the_least_wanted_goes_first() -> None:
    """What does not fit at all is not kept."""

    async def test() -> None:
        cache, engine = Cache(2 * ROW_BYTES), Engine()
        await answer(cache, engine, b"a")
        await answer(cache, engine, b"bb")
        await answer(cache, engine, b"a")
        await answer(cache, engine, b"ccc")  # takes the place of bb
        engine.asked.clear()
        await answer(cache, engine, b"a", b"ccc")
        assert engine.asked == []
        await answer(cache, engine, b"bb")
        assert engine.asked == [b"bb"]
        tiny = Cache(ROW_BYTES - 1)
        await answer(tiny, engine, b"a")
        await answer(tiny, engine, b"a")
        assert engine.asked == [b"bb", b"a", b"a"]

    asyncio.run(test())
