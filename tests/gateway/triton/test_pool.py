"""Where a call goes, and when it is made once more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from gateway.errors import BadUpstreamResponse, DeadlineExceeded, ModelNotReady, UpstreamUnavailable
from gateway.triton import Answer, Tensor
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.pool import Member, Pool, RetryBudget
from gateway.triton.tensors import CLASSIFICATION
from tests.gateway.triton.test_contract import padded
from tests.pictures import encode, noise

T = TypeVar("T")
PICTURE = encode(noise(8, 8))
GONE, MISSING = UpstreamUnavailable("gone"), ModelNotReady("missing")


class Named(FakeTriton):
    """Has an endpoint of its own, and fails the next calls with `failures`, in order."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.failures: list[Exception] = []

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        if self.failures:
            raise self.failures.pop(0)
        return await super().infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def ask(pool: Pool, timeout: float = 5) -> str:
    """Who answered."""
    return (await pool.infer("ensemble_model", padded([PICTURE]), [CLASSIFICATION], timeout=timeout)).endpoint


async def shares(pool: Pool, calls: int) -> Counter[str]:
    return Counter([await ask(pool) for _ in range(calls)])


@pytest.fixture
def pair() -> tuple[Named, Named]:
    return Named("a:1"), Named("b:1")


def test_calls_take_turns(pair: tuple[Named, Named]) -> None:
    """One after the other they go to each the same."""
    assert run(shares(Pool(pair), 10)) == {"a:1": 5, "b:1": 5}


def test_a_slow_one_gets_less(pair: tuple[Named, Named]) -> None:
    """Calls that come together go where fewer are under way: one that needs ten times as long does a tenth."""
    pair[0].delay, pair[1].delay = 0.05, 0.005

    async def crowd() -> Counter[str]:
        pool, answered = Pool(pair), Counter[str]()

        async def caller() -> None:
            for _ in range(20):
                answered[await ask(pool)] += 1

        await asyncio.gather(*(caller() for _ in range(4)))
        return answered

    answered = run(crowd())
    assert answered["a:1"] < 0.3 * answered["b:1"]


def test_one_that_is_away_costs_nobody_an_answer(pair: tuple[Named, Named]) -> None:
    """The call that finds out is made once more; the next ones go to the other alone."""
    pair[0].failure = GONE

    async def work() -> Counter[str]:
        pool = Pool(pair)
        answered = await shares(pool, 10)
        assert [member.away for member in pool.members] == [True, False]
        return answered

    assert run(work()) == {"b:1": 10}


def test_when_all_are_away_it_is_said_at_once(pair: tuple[Named, Named]) -> None:
    """Nobody is asked, and nobody waits."""
    for each in pair:
        each.failure = GONE

    async def work() -> None:
        pool = Pool(pair)
        for _ in range(3):
            with pytest.raises(UpstreamUnavailable):
                await ask(pool)
        for each in pair:
            each.failure = None
        with pytest.raises(UpstreamUnavailable):
            await ask(pool)
        assert (await Discovery(pool, "ensemble_model", 5).check()).ready
        assert await ask(pool) == "a:1"

    run(work())


def test_it_comes_back_by_a_probe_and_slowly(pair: tuple[Named, Named]) -> None:
    """One call at first; when that is answered, as many as the other gets."""
    pair[0].failures = [GONE]

    async def work() -> None:
        pool = Pool(pair)
        assert await ask(pool) == "b:1"
        pool.members[0].probed(None)
        pair[0].delay = pair[1].delay = 0.05
        assert Counter(await asyncio.gather(*(ask(pool) for _ in range(10)))) == {"a:1": 1, "b:1": 9}
        assert Counter(await asyncio.gather(*(ask(pool) for _ in range(10)))) == {"a:1": 5, "b:1": 5}

    run(work())


def test_one_that_fails_again_and_again_rests_longer(
    pair: tuple[Named, Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probes are answered and its calls are not: after 0, 0.5, 1, 2, 4, 8, 10, 10 seconds it gets another call."""
    now = 1000.0
    monkeypatch.setattr("gateway.triton.pool.time.monotonic", lambda: now)
    pair[0].failure = GONE
    member = Member(pair[0])
    rests = []
    for _ in range(8):
        with pytest.raises(UpstreamUnavailable):
            run(member.infer("ensemble_model", padded([PICTURE]), [CLASSIFICATION], timeout=5))
        member.probed(None)
        failed_at = now
        while member.rank():
            now += 0.25
        rests.append(now - failed_at)
    assert rests == [0, 0.5, 1, 2, 4, 8, 10, 10]
    pair[0].failure = None
    run(member.infer("ensemble_model", padded([PICTURE]), [CLASSIFICATION], timeout=5))
    pair[0].failure = GONE
    with pytest.raises(UpstreamUnavailable):
        run(member.infer("ensemble_model", padded([PICTURE]), [CLASSIFICATION], timeout=5))
    member.probed(None)
    assert member.rank() == 0


def test_calls_that_fail_together_count_once(pair: tuple[Named, Named]) -> None:
    """Fifty calls lose their connection with one Triton: that is one failure."""

    async def work() -> None:
        member = Member(pair[0])
        gone = asyncio.Event()

        async def lost(*arguments: object, **keywords: object) -> Answer:
            await gone.wait()
            raise GONE

        pair[0].infer = lost  # type: ignore[method-assign]
        calls = [asyncio.ensure_future(member.infer("m", [], [], timeout=5)) for _ in range(50)]
        await asyncio.sleep(0)
        gone.set()
        await asyncio.wait(calls)
        assert all(isinstance(call.exception(), UpstreamUnavailable) for call in calls)
        member.probed(None)
        assert member.rank() == 0

    run(work())


def test_a_lone_triton_is_asked_again_itself(pair: tuple[Named, Named]) -> None:
    """Its connection may be all that was lost; once, and not twice."""
    pair[0].failures = [GONE]
    assert run(ask(Pool(pair[:1]))) == "a:1"
    pair[0].failures = [GONE, GONE]
    with pytest.raises(UpstreamUnavailable):
        run(ask(Pool(pair[:1])))
    assert pair[0].failures == []


def test_retries_have_a_budget(pair: tuple[Named, Named]) -> None:
    """Ten at first, then one for every ten calls: 200 failing calls are 229 at Triton."""
    pair[0].failures = [GONE] * 1000

    async def work() -> None:
        pool = Pool(pair[:1])
        for _ in range(200):
            with pytest.raises(UpstreamUnavailable):
                await ask(pool)

    run(work())
    assert 1000 - len(pair[0].failures) == pytest.approx(230, abs=1)


def test_the_budget_holds_no_more_than_ten() -> None:
    """A quiet week does not pay for a storm."""
    budget = RetryBudget()
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(12)] == [True] * 10 + [False] * 2


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), BadUpstreamResponse("nonsense")])
def test_what_was_answered_is_not_asked_again(pair: tuple[Named, Named], error: Exception) -> None:
    """Work that Triton did, or may still be doing, is not done twice; the Triton is probed soon."""
    pair[0].failures = [error]

    async def work() -> None:
        pool = Pool(pair)
        with pytest.raises(type(error)):
            await ask(pool)
        assert pool.members[0].doubt.is_set()
        assert not pool.members[0].away

    run(work())


def test_no_retry_beyond_the_deadline(pair: tuple[Named, Named]) -> None:
    """When the time is up the first failure is the answer."""
    pair[0].failures = [GONE]
    with pytest.raises(UpstreamUnavailable):
        run(ask(Pool(pair), timeout=0.005))


def test_a_model_that_is_missing_in_one_place(pair: tuple[Named, Named]) -> None:
    """The others are asked at once, without a budget; when none has it that is the answer."""
    pair[0].failures = [MISSING] * 30
    assert run(shares(Pool(pair), 30)) == {"b:1": 30}
    for each in pair:
        each.failures = [MISSING]
    with pytest.raises(ModelNotReady):
        run(ask(Pool(pair)))


def test_one_whose_probe_fails_is_the_last_choice(pair: tuple[Named, Named]) -> None:
    """It can be reached and does not do well: it gets calls only when there is no better one."""

    async def work() -> None:
        pool = Pool(pair)
        pool.members[0].probed(BadUpstreamResponse("nonsense"))
        assert await shares(pool, 5) == {"b:1": 5}
        pool.members[1].probed(DeadlineExceeded("late"))
        assert await shares(pool, 4) == {"a:1": 2, "b:1": 2}

    run(work())
