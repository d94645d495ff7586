"""The autoscaler's arithmetic, and what it makes of traffic."""

from __future__ import annotations

import pytest

from benchmarks.autoscaling import Policy, Signals, day, follow

# A pod whose queue grows late and whose GPU is used less, the fuller its batches are.
SHOWN = [Signals(0.3, 1, 0.3, 0.4), Signals(0.7, 3, 0.7, 0.5), Signals(0.95, 20, 0.95, 0.3)]


@pytest.mark.parametrize(
    ("policy", "pods", "mean", "wanted"),
    [
        (Policy(waiting=10), 2, Signals(0.5, waiting=25, busy=0.5), 5),
        (Policy(waiting=10), 4, Signals(0.5, waiting=1, busy=0.5), 1),
        (Policy(waiting=10), 4, Signals(0.5, waiting=10.9, busy=0.5), 4),  # within the tolerance
        (Policy(busy=0.6), 4, Signals(0.5, waiting=0, busy=0.9), 6),
        (Policy(waiting=10, busy=0.6), 4, Signals(0.5, waiting=1, busy=0.6), 4),
        (Policy(busy=0.6), 1, Signals(0.0, waiting=0, busy=0.0), 1),
    ],
)
def test_wanted_pods_are_those_of_kubernetes(policy: Policy, pods: int, mean: Signals, wanted: int) -> None:
    """`ceil(pods * now / aim)`, nothing within a tenth, the most of several aims, and never none."""
    assert policy.wanted(pods, mean) == wanted


def test_cores_in_use_follow_the_traffic() -> None:
    """Scaled by its cores, the service is never overloaded, and has fewer pods than its peak needs all day."""
    report = follow(Policy(busy=0.6), SHOWN, pod=1000)
    assert report.overloaded_s == 0
    assert report.late_share == 0
    assert 2 < report.mean_pods < 6


def test_the_use_of_the_gpu_asks_for_nobody() -> None:
    """Its GPU never looks busy, however many images wait for the cores that decode."""
    report = follow(Policy(gpu=0.6), SHOWN, pod=1000)
    assert report.changes == 0
    assert report.late_share > 0.5


def test_a_late_aim_for_the_queue_takes_pods_away_that_are_needed() -> None:
    """A short queue does not say how much is left: with an aim near saturation pods go, come and go again."""
    late, early = follow(Policy(waiting=20), SHOWN, pod=1000), follow(Policy(waiting=3), SHOWN, pod=1000)
    assert late.overloaded_s > early.overloaded_s
    assert late.changes > early.changes


def test_a_day_rises_and_falls() -> None:
    """The traffic starts and ends at a tenth of its peak."""
    rates = day(1000)
    assert rates[0] == pytest.approx(100)
    assert max(rates) == pytest.approx(1000, rel=0.02)
    assert rates[-1] == pytest.approx(100, rel=0.02)
