"""The measurements of one run, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from build_engines.errors import TuneError
from build_engines.tuning.choice import (
    ROUNDS,
    Findings,
    InvalidError,
    Measured,
    Point,
    Round,
    best,
    best_point,
    conclude,
    descend,
    fits,
    nearest,
)
from build_engines.tuning.load import Load, Photos, Rows, measure
from build_engines.tuning.servers import Server
from build_engines.tuning.settings import Change, Setting


def say(text: str) -> None:
    """A line for the user."""
    print(text, flush=True)


class Trial:
    """Measures settings on one server."""

    def __init__(self, server: Server, photos: Photos, load: Load, budget_ms: float | None) -> None:
        self._server = server
        self._photos = photos
        self._load = load
        self._budget_ms = budget_ms
        self._expected: Rows | None = None
        """What today's setting answered; every other must answer the same."""

    def run(self, axes: Sequence[Sequence[Change]]) -> Findings:
        """Measures today's setting, then variations of the best so far, then the winner against today's."""
        today = self._measure(self._server.today(), None, self._load)
        if today.invalid:
            raise TuneError(f"The model as it is configured today could not be measured: {today.invalid}.")
        measured = descend(today, axes, lambda each: self._measure(each, each, self._load), self._budget_ms)
        winner = best(measured, self._budget_ms)
        point = best_point(winner, self._budget_ms) or nearest(measured)[1]
        before = best_point(today, self._budget_ms) or point
        if winner is today or not fits(point, self._budget_ms):
            say("Today's setting once more:")
            again = self._once(today.setting, None, before)
            return conclude(measured, (), self._budget_ms, again)
        say(f"In turn with today's setting: {winner.setting}")
        rounds = []
        for _ in range(ROUNDS):
            again = self._once(today.setting, None, before)
            ahead = self._once(winner.setting, winner.setting, point)
            if again is None or ahead is None:
                break
            rounds.append(Round(again, ahead))
        return conclude(measured, rounds, self._budget_ms, again)

    def _once(self, setting: Setting, served: Setting | None, point: Point) -> Point | None:
        """The same load as at `point` once more; None when it fails."""
        found = self._measure(setting, served, replace(self._load, clients=[point.clients]))
        return None if found.invalid else found.points[0]

    def _measure(self, setting: Setting, served: Setting | None, load: Load) -> Measured:
        """`setting` under a load; with None as `served` through the configuration as it is."""
        try:
            with self._server.serving(served) as url:
                points, rows = measure(url, self._photos, load, self._expected)
        except InvalidError as error:
            say(f"  {setting}: {error}")
            return Measured(setting, (), str(error))
        self._expected = rows if self._expected is None else self._expected
        rates, times, clients = (
            ", ".join(f"{value:.0f}" for value in values)
            for values in zip(*((each.rate, each.p95_ms, each.clients) for each in points), strict=True)
        )
        say(f"  {setting}: {rates} images/s, p95 {times} ms with {clients} in flight")
        return Measured(setting, points)
