"""Costs from what was measured, and sizes from costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.capacity import (
    BUSY,
    Costs,
    by_round,
    capacity,
    costs_of,
    cpu_host,
    curve,
    gpu_host,
    knee,
    one_machine,
    shared,
    size,
)
from benchmarks.observed import OUT, counters, role
from benchmarks.queueing import Load, simulate

COSTS = Costs(0.0012, 0.0006, 0.0024, 0.0004, 0.008, 0.001, sender=0.0002, elsewhere=0.003)


def observed(clients: int | None, rate: float | None, seconds: float = 40) -> dict[str, Any]:
    """What a stack of known costs shows under a load, in the form of benchmarks.observed."""
    outcome = simulate(one_machine(COSTS), shared(2), Load(rate=rate, clients=clients), seconds)
    batch = {step: outcome.mean_batch[step] for step in ("preprocessor", "classifier")}
    return {
        "clients": clients,
        "rate": rate,
        "images_per_s": outcome.images_per_s,
        "p50_s": outcome.p50_s,
        "mean_batch": batch,
        "cpu_s": {
            "sender": COSTS.sender,
            "gateway": COSTS.gateway,
            "tritonserver": COSTS.tritonserver,
            "preprocessor": COSTS.preprocessor + COSTS.preprocessor_batch / batch["preprocessor"],
            "classifier": COSTS.classifier + COSTS.classifier_batch / batch["classifier"],
        },
    }


def test_costs_are_found_again() -> None:
    """From one client and many clients come the costs that the stack has."""
    found = costs_of(observed(1, None), observed(32, None))
    assert vars(found) == pytest.approx(vars(COSTS), rel=0.1)


def test_loads_fall_into_rounds() -> None:
    """A round starts with one client."""
    loads: list[dict[str, Any]] = [{"clients": 1}, {"clients": 32}, {"clients": None}, {"clients": 1}, {"clients": 32}]
    assert [len(each) for each in by_round(loads)] == [3, 2]


def test_sizes_are_rates_times_costs() -> None:
    """Ten times as many images need ten times as many cores, with the headroom on top."""
    small, large = size(1_000, COSTS, 110_000), size(10_000, COSTS, 110_000)
    assert small.gateway_cores == pytest.approx(1.2 / BUSY)
    assert small.decode_cores == pytest.approx(2.4 / BUSY)
    assert large.decode_cores == pytest.approx(10 * small.decode_cores)
    assert small.gbit_per_s == pytest.approx(0.88)
    assert small.gpus["A100"] == pytest.approx(0.05)


def test_decoding_and_not_the_gpu_sets_the_number_of_hosts() -> None:
    """Where photos are decoded on processors, GPUs of a usual host are mostly idle."""
    sized = size(100_000, COSTS, 110_000)
    assert sized.hosts > 3 * sized.gpus["A100"]
    assert sized.gpu_busy < 0.3


def test_capacity_is_where_the_simulation_stops_keeping_up() -> None:
    """Below it all that is offered is answered; above it less than it, as first steps take cores from the last."""
    stations, pools = cpu_host(COSTS, 2)
    full = capacity(stations, pools)
    (_, below), (_, above) = curve(stations, pools, (0.8, 1.3), 40)
    assert below.images_per_s == pytest.approx(0.8 * full, rel=0.05)
    assert 0.7 * full < above.images_per_s < 1.01 * full


def test_what_is_refused_at_the_door_leaves_the_cores_to_the_rest() -> None:
    """With the gate's limit an overloaded machine answers as many images as it can, each within a bounded time."""
    stations = one_machine(COSTS)
    full = capacity(stations, shared(2))
    outcome = simulate(stations, shared(2), Load(rate=1.3 * full), 40)
    assert outcome.images_per_s == pytest.approx(full, rel=0.1)
    assert outcome.p95_s < 256 / full * 1.2
    assert outcome.refused > 0.1


def test_a_gpu_behind_processors_looks_idle_when_they_are_full() -> None:
    """The busier the host, the fuller the batches, and the less a GPU has to do for each image."""
    stations, pools = gpu_host(COSTS, 16, 20_000)
    outcomes = curve(stations, pools, (0.5, 0.95), 2)
    assert outcomes[1][1].mean_batch["classifier"] > 2 * outcomes[0][1].mean_batch["classifier"]
    assert outcomes[1][1].busy["cores"] > 0.9
    assert outcomes[1][1].busy["gpu"] < outcomes[0][1].busy["gpu"]


def test_the_knee_lies_between_half_and_full() -> None:
    """It is where the slowest answers take twice the time of those at half the load."""
    stations, pools = cpu_host(COSTS, 2)
    assert 0.55 < knee(curve(stations, pools, (0.5, 0.7, 0.9), 40)) < 0.9


def test_processes_are_known_by_their_commands() -> None:
    """The CPU time of each goes to the part that it belongs to."""
    assert role(["stub", "/repository/preprocessor/1/model.py"]) == "preprocessor"
    assert role(["stub", "/repository/classifier/7/model.py"]) == "classifier"
    assert role(["/wheel/bin/tritonserver", "--model-repository=/repository"]) == "tritonserver"
    assert role(["python", "-m", "gateway.cli", "up"]) == "gateway"


def test_counters_are_those_of_the_steps() -> None:
    """Versions are summed, other models and other counters are not."""
    text = (
        'nv_inference_count{model="classifier",version="1"} 5\n'
        'nv_inference_count{model="classifier",version="2"} 7\n'
        'nv_inference_count{model="ensemble_model",version="1"} 99\n'
        'nv_inference_queue_duration_us{model="preprocessor",version="1"} 1500\n'
    )
    found = counters(text)
    assert found["count classifier"] == 12
    assert found["queue preprocessor"] == 1500
    assert found["exec classifier"] == 0


def test_the_measured_loads_can_be_read() -> None:
    """What docs/scaling.md was made from is there, and whole."""
    document = json.loads(OUT.read_text())
    for loads in by_round(document["loads"]):
        costs = costs_of(loads[0], loads[1])
        assert 0 < costs.gateway < costs.image() < 0.1
        assert sum(load["failures"] for load in loads) == 0
