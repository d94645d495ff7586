"""The simulation against queues whose answers are known from theory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.queueing import Load, Station, simulate

ONE = {"cores": 1.0}


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_one_server_waits_as_pollaczek_and_khinchine_say(busy: float) -> None:
    """Requests of equal work that arrive at random: ρ²/2(1-ρ) of them wait on average."""
    outcome = simulate([Station("a", "cores", 0.01)], ONE, Load(rate=busy / 0.01), 300)
    assert outcome.pending["a"] == pytest.approx(busy**2 / 2 / (1 - busy), rel=0.1)
    assert outcome.busy["cores"] == pytest.approx(busy, rel=0.05)
    assert outcome.images_per_s == pytest.approx(busy / 0.01, rel=0.05)
    assert outcome.mean_batch["a"] == 1


def test_a_closed_loop_is_as_fast_as_its_slowest_station() -> None:
    """With clients enough the slowest station sets the rate, and Little's law the latency."""
    stations = [Station("fast", "one", 0.01), Station("slow", "other", 0.02)]
    outcome = simulate(stations, {"one": 1, "other": 1}, Load(clients=8), 60)
    assert outcome.images_per_s == pytest.approx(50, rel=0.02)
    assert outcome.p50_s == pytest.approx(8 / 50, rel=0.02)


def test_stations_share_cores() -> None:
    """Two stations on one core are as fast as one that does the work of both."""
    stations = [Station("a", "cores", 0.01), Station("b", "cores", 0.03)]
    assert simulate(stations, ONE, Load(clients=4), 60).images_per_s == pytest.approx(25, rel=0.02)


def test_a_batch_uses_as_many_cores_as_it_has_images() -> None:
    """One image takes its whole time even where cores are idle; four take the same time on four cores."""
    station = Station("a", "cores", 0.1, max_batch=4, threads=4)
    assert simulate([station], {"cores": 4}, Load(clients=1), 10).p50_s == pytest.approx(0.1)
    assert simulate([station], {"cores": 4}, Load(clients=1, images=4), 10).p50_s == pytest.approx(0.1)
    assert simulate([station], {"cores": 2}, Load(clients=1, images=4), 10).p50_s == pytest.approx(0.2)


def test_an_image_that_splits_uses_all_cores() -> None:
    """As the classifier on CPUs does with one that comes alone."""
    station = Station("a", "cores", 0.1, threads=4, splits=True)
    assert simulate([station], {"cores": 4}, Load(clients=1), 10).p50_s == pytest.approx(0.025)


def test_what_waits_is_batched() -> None:
    """While a batch is in work the next one gathers: its fixed cost is shared by more, the higher the load."""
    station = Station("a", "cores", 0.001, per_batch_s=0.01, max_batch=16)
    low = simulate([station], ONE, Load(rate=20), 60)
    high = simulate([station], ONE, Load(rate=500), 60)
    assert low.mean_batch["a"] < 1.3 < 5 < high.mean_batch["a"] <= 16
    assert high.images_per_s == pytest.approx(500, rel=0.05)  # one by one it would be 91


def test_a_delay_gathers_a_batch() -> None:
    """A batch starts when it is full, or when its oldest request has waited for the delay."""
    station = Station("a", "cores", 0.001, max_batch=4, delay_s=0.1, threads=4)
    assert simulate([station], {"cores": 4}, Load(clients=3), 20).p50_s == pytest.approx(0.101)
    assert simulate([station], {"cores": 4}, Load(clients=4), 5).p50_s == pytest.approx(0.001)


def test_instances_take_turns() -> None:
    """What two instances do beside their images overlaps; the images of one come after those of the other."""
    station: dict[str, Any] = {"per_image_s": 0.02, "per_batch_s": 0.02, "instances": 2}
    turns = simulate([Station("a", "cores", takes_turns=True, **station)], {"cores": 4}, Load(clients=4), 60)
    free = simulate([Station("a", "cores", **station)], {"cores": 4}, Load(clients=4), 60)
    assert turns.images_per_s == pytest.approx(50, rel=0.02)
    assert free.images_per_s == pytest.approx(50, rel=0.02)
    alone = simulate([Station("a", "cores", takes_turns=True, **{**station, "instances": 4})], ONE, Load(clients=1), 9)
    assert alone.p50_s == pytest.approx(0.04)


def test_too_much_is_refused_at_the_door() -> None:
    """What passes the limit is refused; what is admitted waits no longer than the limit lets it."""
    stations = [Station("gate", "gate", 0.0, instances=99, admits=10), Station("a", "cores", 0.01)]
    outcome = simulate(stations, {**ONE, "gate": math.inf}, Load(rate=200), 60)
    assert outcome.images_per_s == pytest.approx(100, rel=0.02)
    assert outcome.refused == pytest.approx(0.5, abs=0.05)
    assert outcome.p95_s <= 0.1 + 1e-9
    assert 8 < outcome.in_flight <= 10


def test_a_request_larger_than_the_limit_is_let_in_alone() -> None:
    """The gateway's own rule: nobody is refused for ever."""
    stations = [Station("gate", "cores", 0.0, admits=4), Station("a", "cores", 0.01, max_batch=8)]
    outcome = simulate(stations, ONE, Load(clients=1, images=8), 10)
    assert outcome.refused == 0
    assert outcome.images_per_s == pytest.approx(100, rel=0.05)


def test_the_same_seed_gives_the_same_outcome() -> None:
    """A table can be made again."""
    station = Station("a", "cores", 0.01)
    first, again, other = (simulate([station], ONE, Load(rate=50), 20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
