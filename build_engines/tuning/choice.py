"""Which setting is the best, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from build_engines.tuning.settings import Change, Setting

# Two runs of one setting differ by about this much on a shared machine.
NOISE = 0.03
ROUNDS = 2

# When today's setting differs so much from itself, the machine had other work to do.
RESTLESS = 0.1


class InvalidError(Exception):
    """Why a setting cannot be used: it does not load, fails, or answers wrongly."""


@dataclass(frozen=True)
class Point:
    """One load, measured."""

    clients: int
    """Requests of one image each that were in flight at any time."""
    rate: float
    """Images a second."""
    p50_ms: float
    p95_ms: float
    answers: int
    """How many were counted."""


@dataclass(frozen=True)
class Measured:
    """One setting at several loads."""

    setting: Setting
    points: tuple[Point, ...]
    invalid: str = ""
    """Why it cannot be used; then no points count."""


@dataclass(frozen=True)
class Round:
    """Today's setting and the winner, measured one right after the other."""

    today: Point
    winner: Point


@dataclass(frozen=True)
class Findings:
    """All that was measured, and what follows."""

    budget_ms: float | None
    today: Setting
    measured: tuple[Measured, ...]
    """`today` is the first."""
    rounds: tuple[Round, ...]
    """Today's setting against the winner; none when today's was not beaten, or nothing fits."""
    again: Point | None
    """Today's setting at its best load, measured once more at the end; None when it fits no load, or failed."""
    chosen: Setting | None
    """The one to serve from now on; None when nothing stays within the budget."""
    outcome: str
    """One or two sentences."""


def fits(point: Point, budget_ms: float | None) -> bool:
    """Whether 95 of 100 answers came within the budget."""
    return budget_ms is None or point.p95_ms <= budget_ms


def best_point(measured: Measured, budget_ms: float | None) -> Point | None:
    """The one of highest throughput within the budget; None if there is none, or the setting is invalid."""
    points = [] if measured.invalid else [point for point in measured.points if fits(point, budget_ms)]
    return max(points, key=lambda point: point.rate, default=None)


def nearest(measured: Sequence[Measured]) -> tuple[Measured, Point]:
    """The valid setting, and its point, with the shortest p95; raises ValueError when no setting is valid."""
    pairs = [(each, point) for each in measured if not each.invalid for point in each.points]
    return min(pairs, key=lambda pair: pair[1].p95_ms)


def best(measured: Sequence[Measured], budget_ms: float | None) -> Measured:
    """The setting of highest throughput within the budget; where none fits, the one that comes nearest to it.

    One that is ahead by no more than the noise takes no place of an earlier one.
    """
    found, rate = None, 0.0
    for each in measured:
        point = best_point(each, budget_ms)
        if point is not None and point.rate > rate * (1 + NOISE):
            found, rate = each, point.rate
    return found or nearest(measured)[0]


def descend(
    today: Measured,
    axes: Sequence[Sequence[Change]],
    measure: Callable[[Setting], Measured],
    budget_ms: float | None,
) -> list[Measured]:
    """All that was measured, `today` first, no setting twice.

    Varies one thing at a time and keeps the best of all so far, instead of trying every combination.
    """
    results = {today.setting: today}
    for axis in axes:
        start = best(list(results.values()), budget_ms).setting
        for change in axis:
            setting = replace(start, **change)  # type: ignore[arg-type]  # only `threads` may be None
            if setting not in results:
                results[setting] = measure(setting)
    return list(results.values())


def beats_noise(rounds: Sequence[Round], budget_ms: float | None) -> bool:
    """Whether the winner stayed within the budget and clearly ahead of today's setting in every round.

    Where today's setting misses the budget, staying within it is enough.
    """
    return bool(rounds) and all(
        fits(each.winner, budget_ms)
        and (not fits(each.today, budget_ms) or each.winner.rate > each.today.rate * (1 + NOISE))
        for each in rounds
    )


def restless(today: Measured, again: Point | None) -> str:
    """A sentence for when today's setting, measured `again` at the end, is not as fast as it was; else nothing."""
    if again is None:
        return ""
    (first,) = (point for point in today.points if point.clients == again.clients)
    if abs(again.rate / first.rate - 1) <= RESTLESS:
        return ""
    return (
        f" But the machine was not quiet: today's setting answered {first.rate:.1f} images/s at first "
        f"and {again.rate:.1f} at the end. Measure again when nothing else runs."
    )


def conclude(
    measured: Sequence[Measured], rounds: Sequence[Round], budget_ms: float | None, again: Point | None = None
) -> Findings:
    """What follows from all that was measured.

    The first of `measured` is today's setting, which was measured `again` at the end; `rounds` are those
    against the best.
    """
    today, winner = measured[0], best(measured, budget_ms)
    before, point = best_point(today, budget_ms), best_point(winner, budget_ms)
    within = "" if budget_ms is None else f" within {budget_ms:g} ms at p95"
    chosen: Setting | None = None
    if point is None:
        near, closest = nearest(measured)
        outcome = (
            f"No setting stays{within}. The nearest is {near.setting}: {closest.p95_ms:.1f} ms "
            f"with {closest.clients} client{'s' * (closest.clients > 1)}, {closest.rate:.1f} images/s."
        )
    elif winner is today:
        chosen = today.setting
        outcome = f"Today's setting stays: nothing that was tried is more than {NOISE:.0%} faster{within}."
    elif len(rounds) == ROUNDS and beats_noise(rounds, budget_ms):
        chosen = winner.setting
        ratios = " and ".join(f"{each.winner.rate / each.today.rate:.2f}" for each in rounds)
        outcome = f"Better than today's: {chosen}. In turn with today's it answered {ratios} × the images/s{within}."
        if before is None:
            outcome = f"Unlike today's setting, this one stays{within}: {chosen}."
    elif before is not None:
        chosen = today.setting
        outcome = (
            f"Today's setting stays: {winner.setting} was ahead at first, "
            f"but not by more than {NOISE:.0%}{within} in each of {ROUNDS} rounds against it."
        )
    else:
        outcome = (
            f"No setting stays{within} every time. The nearest is {winner.setting}: {point.p95_ms:.1f} ms at first "
            f"with {point.clients} client{'s' * (point.clients > 1)}, and more when it was measured again."
        )
    outcome += restless(today, again)
    return Findings(budget_ms, today.setting, tuple(measured), tuple(rounds), again, chosen, outcome)
