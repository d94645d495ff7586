"""The limit follows what a model carries."""

from __future__ import annotations

import pytest

from gateway.limiter import Limiter

FLOOR, CAP, TARGET = 8, 256, 2.5


def loaded(limiter: Limiter, rate: float, rounds: int) -> list[float]:
    """The limit over time, of a model that answers `rate` images a second and is always as full as it may be."""
    limits = []
    for _ in range(rounds):
        ahead = int(limiter.limit)
        limiter.answered(ahead, 1, ahead / rate)
        limits.append(limiter.limit)
    return limits


@pytest.mark.parametrize("rate", [5, 20, 60, 100])
def test_it_finds_what_a_slow_model_answers_in_time(rate: float) -> None:
    """With the first late answer, and it stays there."""
    limits = loaded(Limiter(FLOOR, CAP, TARGET), rate, 500)
    expected = max(FLOOR, rate * TARGET)
    assert limits[0] == pytest.approx(expected, rel=0.05)
    assert all(0.9 * expected - 1 <= limit <= 1.1 * expected + 1 for limit in limits)


def test_a_fast_model_keeps_the_cap() -> None:
    """What answers in time is not held back."""
    assert set(loaded(Limiter(FLOOR, CAP, TARGET), 1000, 500)) == {CAP}


def test_it_rises_when_the_model_becomes_faster() -> None:
    """Within a few times what may be in flight."""
    limiter = Limiter(FLOOR, CAP, TARGET)
    loaded(limiter, 5, 50)
    assert loaded(limiter, 200, 600)[-1] > 200


def test_it_does_not_rise_while_it_is_not_used() -> None:
    """Few quick answers say nothing about many at one time."""
    limiter = Limiter(FLOOR, CAP, TARGET)
    loaded(limiter, 20, 10)
    before = limiter.limit
    for _ in range(1000):
        limiter.answered(2, 1, 0.05)
    assert limiter.limit == before


def test_a_deadline_of_the_caller_tells_nothing() -> None:
    """Who gives up early was not kept waiting by the model; who gave up late was."""
    limiter = Limiter(FLOOR, CAP, TARGET)
    limiter.given_up(100, 1, 0.2)
    assert limiter.limit == CAP
    limiter.given_up(100, 1, 10)
    assert limiter.limit == 25


def test_a_full_batch_is_always_allowed() -> None:
    """However slow the model is; and a cap below that counts."""
    limiter = Limiter(FLOOR, CAP, TARGET)
    limiter.answered(8, 8, 1000)
    assert limiter.limit == FLOOR
    small = Limiter(FLOOR, 4, TARGET)
    small.answered(4, 4, 1000)
    assert small.limit == 4
