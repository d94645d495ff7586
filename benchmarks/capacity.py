"""`python -m benchmarks.capacity`: what docs/scaling.md says, computed anew, as tables in Markdown.

    compare     the simulation beside what benchmarks.observed measured
    size        cores and GPUs for 1,000, 10,000 and 100,000 images a second
    thresholds  queues and latencies of one Triton against its load: from where on to scale
    door        an overloaded machine with and without the gateway's limit
    scale       what an autoscaler makes of a rise and fall of traffic, by what it looks at

Costs come from docs/benchmarks/capacity.json, which benchmarks.observed writes. Nothing here was run on a GPU: what a
GPU does is an assumption, named as such.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.autoscaling import Policy, Signals, follow
from benchmarks.observed import OUT
from benchmarks.queueing import Load, Outcome, Station, simulate

MS = 1000
CPU_BATCH = 32  # max_batch_size of the classifier on CPUs
GPU_BATCH = 256
ADMITTED = 256  # TIDEGATE_MAX_IN_FLIGHT_IMAGES of a small machine, and of a pod of the chart

# ResNet-50 offline without decoding, images/s: MLPerf's for one GPU. An online service keeps batches small, and gets
# a part of it: half is an assumption.
GPU_LIMITS = {"A100": 40_000, "H100": 88_000}
GPU_SHARE = 0.5
GPU_BATCH_S = 0.001  # launch and copy of a batch: an assumption

# Shares of what a core can do that are planned with. The rest is for bursts, for a third of the pods being gone, and
# for the minutes until new ones serve.
BUSY = 0.6
HOST_CORES = 16  # of a usual host with one GPU
SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)

WHAT = ("compare", "size", "thresholds", "door", "scale")


@dataclass(frozen=True)
class Costs:
    """Core-seconds of one image at each station, and of one batch whatever its size."""

    gateway: float
    tritonserver: float
    preprocessor: float
    preprocessor_batch: float
    classifier: float
    classifier_batch: float
    sender: float = 0.0
    elsewhere: float = 0.0
    """Seconds that an image alone takes and no core works on it: wake-ups, copies between processes."""

    def image(self) -> float:
        """Of one image in a large batch, without the sender of a benchmark."""
        return self.gateway + self.tritonserver + self.preprocessor + self.classifier


def costs_of(alone: Mapping[str, Any], full: Mapping[str, Any]) -> Costs:
    """From a load of one client, where batches have one image, and one of many, where they have several."""

    def step(name: str) -> tuple[float, float]:
        one, many, batch = alone["cpu_s"][name], full["cpu_s"][name], full["mean_batch"][name]
        each_batch = max(0.0, (one - many) / (1 - 1 / batch))
        return many - each_batch / batch, each_batch

    preprocessor, preprocessor_batch = step("preprocessor")
    classifier, classifier_batch = step("classifier")
    cpu = full["cpu_s"]
    costs = Costs(
        cpu["gateway"],
        cpu["tritonserver"],
        preprocessor,
        preprocessor_batch,
        classifier,
        classifier_batch,
        cpu["sender"],
    )
    idle = simulate(one_machine(costs), shared(cores_had(full)), Load(clients=1), 5)
    return replace(costs, elsewhere=max(0.0, alone["p50_s"] - idle.p50_s))


def costs_of_round(loads: Sequence[Mapping[str, Any]]) -> Costs:
    """The median over all of a round's loads of many clients, each with that of one client."""
    return middle([costs_of(loads[0], load) for load in loads if load["clients"] not in (1, None)])


def cores_had(full: Mapping[str, Any]) -> float:
    """Cores that the stack and its sender worked with when they wanted all: less than there are on a shared machine."""
    return float(full["images_per_s"] * sum(full["cpu_s"].values()))


def one_machine(costs: Costs, cores: int = 2) -> list[Station]:
    """`tidegate up` and the sender of a benchmark, which share the cores of one machine."""
    return [
        Station("sender", "cores", costs.sender),
        Station("gateway", "cores", costs.gateway, admits=ADMITTED),
        Station("elsewhere", "nobody", costs.elsewhere, instances=10**6),
        Station("tritonserver", "cores", costs.tritonserver, instances=10**6),
        Station(
            "preprocessor", "cores", costs.preprocessor, costs.preprocessor_batch, max_batch=GPU_BATCH, threads=cores
        ),
        Station(
            "classifier",
            "cores",
            costs.classifier,
            costs.classifier_batch,
            max_batch=CPU_BATCH,
            instances=2,
            threads=cores,
            splits=True,
            takes_turns=True,
        ),
    ]


def shared(cores: float) -> dict[str, float]:
    """The pools of `one_machine`."""
    return {"cores": cores, "nobody": math.inf}


def cpu_host(costs: Costs, cores: int) -> tuple[list[Station], dict[str, float]]:
    """A Triton on CPUs behind gateways that stand elsewhere."""
    stations = [s for s in one_machine(costs, cores) if s.name not in ("sender", "elsewhere")]
    return [_far(stations[0]), *stations[1:]], {"cores": cores, "gateways": 64}


def gpu_host(costs: Costs, cores: int, images_per_s: float) -> tuple[list[Station], dict[str, float]]:
    """A Triton whose network runs on a GPU and whose photos are decoded on `cores`; gateways stand elsewhere."""
    stations, pools = cpu_host(costs, cores)
    on_gpu = Station(
        "classifier", "gpu", 1 / images_per_s, GPU_BATCH_S, max_batch=GPU_BATCH, delay_s=0.001, instances=2
    )
    return [*stations[:-1], on_gpu], {**pools, "gpu": 1.0}


def _far(gateway: Station) -> Station:
    """Enough workers on machines of their own; what they admit together is not what limits here."""
    return Station(gateway.name, "gateways", gateway.per_image_s, instances=64, admits=10**6)


def capacity(stations: Sequence[Station], pools: Mapping[str, float]) -> float:
    """Images a second at which the first pool is full, with full batches."""
    work = dict.fromkeys(pools, 0.0)
    for station in stations:
        work[station.pool] += station.per_image_s + station.per_batch_s / station.max_batch
    return min(cores / work[name] for name, cores in pools.items() if work[name])


@dataclass(frozen=True)
class Size:
    """What a rate needs, with `BUSY` and `GPU_SHARE` in it."""

    images_per_s: float
    gateway_cores: float
    decode_cores: float
    triton_cores: float
    gpus: Mapping[str, float]
    gbit_per_s: float
    hosts: int
    """Of `HOST_CORES` cores and one GPU each, for decoding, Triton and network."""
    gpu_busy: float
    """Share of what A100s give online, in so many hosts."""


def size(images_per_s: float, costs: Costs, image_bytes: float) -> Size:
    """Cores and GPUs for a rate of photos like those measured."""
    decode, triton = (images_per_s * each / BUSY for each in (costs.preprocessor, costs.tritonserver))
    gpus = {name: images_per_s / (limit * GPU_SHARE) for name, limit in GPU_LIMITS.items()}
    hosts = max(math.ceil((decode + triton) / HOST_CORES), math.ceil(gpus["A100"]))
    return Size(
        images_per_s=images_per_s,
        gateway_cores=images_per_s * costs.gateway / BUSY,
        decode_cores=decode,
        triton_cores=triton,
        gpus=gpus,
        gbit_per_s=images_per_s * image_bytes * 8 / 1e9,
        hosts=hosts,
        gpu_busy=gpus["A100"] / hosts,
    )


def curve(
    stations: Sequence[Station], pools: Mapping[str, float], shares: Sequence[float], seconds: float
) -> list[tuple[float, Outcome]]:
    """Outcomes at shares of the capacity."""
    full = capacity(stations, pools)
    return [(share, simulate(stations, pools, Load(rate=share * full), seconds)) for share in shares]


def pending(outcome: Outcome) -> float:
    """Requests that wait for the step models: what the chart's KEDA trigger sums."""
    return outcome.pending["preprocessor"] + outcome.pending["classifier"]


def knee(outcomes: Sequence[tuple[float, Outcome]]) -> float:
    """The share of the capacity at which p95 is twice that at half the capacity."""
    at_half = next(outcome.p95_s for share, outcome in outcomes if share == 0.5)
    rising = [(share, outcome.p95_s) for share, outcome in outcomes if share >= 0.5]
    return float(np.interp(2 * at_half, [p95 for _, p95 in rising], [share for share, _ in rising]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=WHAT, help="default: all")
    parser.add_argument("--observed", type=Path, default=OUT)
    parser.add_argument("--plot", type=Path, help="a PNG of `compare`; needs matplotlib")
    options = parser.parse_args()
    document = json.loads(options.observed.read_text())
    rounds = by_round(document["loads"])
    costs = middle([costs_of_round(each) for each in rounds])
    for name in [options.what] if options.what else WHAT:
        print(f"\n## {name}\n")
        if name == "compare":
            compare(rounds, document["about"]["cores"], options.plot)
        elif name == "size":
            show_sizes(costs, document["about"]["bytes"])
        elif name == "thresholds":
            show_thresholds(costs)
        elif name == "door":
            show_door(costs)
        else:
            show_scaling(costs)


def by_round(loads: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The loads of each round: one client, then many clients before and after each open loop."""
    starts = [i for i, load in enumerate(loads) if load["clients"] == 1]
    return [list(loads[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def middle(each: Sequence[Costs]) -> Costs:
    """The median of every cost."""
    return Costs(**{key: float(np.median([getattr(costs, key) for costs in each])) for key in vars(each[0])})


def compare(rounds: Sequence[Sequence[Mapping[str, Any]]], cores: float, plot: Path | None) -> None:
    """Measured and simulated, load by load.

    Simulated twice: with all `cores` of the machine, which a program that seldom wants them gets, and with those that
    the closed loops before and after had, which is what is left for one that always does.
    """
    print("| load | cores left | images/s | simulated | p50 ms | simulated | p95 ms | simulated ", end="")
    print("| mean batch | simulated | waiting | simulated |\n|" + " --- |" * 12)
    points = []
    for loads in rounds:
        costs = costs_of_round(loads)
        full = [load for load in loads if load["clients"] not in (1, None)]
        for at, load in enumerate(loads):
            if at > 1 and load in full:
                continue
            around = [near for near in (*loads[max(at - 1, 0) : at], *loads[at : at + 2]) if near in full]
            left = float(np.mean([cores_had(near) for near in around]))
            offered = Load(rate=load["rate"], clients=load["clients"])
            models = [simulate(one_machine(costs), shared(c), offered, 40) for c in (cores, min(left, cores))]
            share = float((load["rate"] or 0) / np.mean([near["images_per_s"] for near in around]))
            cells = [f"{load['clients']} clients" if load["clients"] else f"{share:.0%}", f"{left:.2f}"]
            for digits, measured, simulated in figures(load, models):
                cells += [f"{measured:.{digits}f}", " … ".join(f"{value:.{digits}f}" for value in simulated)]
            print("| " + " | ".join(cells) + " |")
            if load["rate"]:
                points.append((share, figures(load, models)))
    if plot:
        draw(points, plot)


Figures = list[tuple[int, float, list[float]]]


def figures(load: Mapping[str, Any], models: Sequence[Outcome]) -> Figures:
    """Digits to show, what was measured, and what each model says, of each column."""
    return [
        (0, load["images_per_s"], [m.images_per_s for m in models]),
        (0, load["p50_s"] * MS, [m.p50_s * MS for m in models]),
        (0, load["p95_s"] * MS, [m.p95_s * MS for m in models]),
        (1, load["mean_batch"]["classifier"], [m.mean_batch["classifier"] for m in models]),
        (1, sum(load["pending"].values()), [pending(m) for m in models]),
    ]


def draw(points: Sequence[tuple[float, Figures]], path: Path) -> None:
    """p95 and mean batch of the open loops against the share of the capacity that was offered."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shares = [share for share, _ in points]
    drawing, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axes, column, title in zip(panels, (2, 3), ("p95, ms", "mean batch of the classifier"), strict=True):
        each = [row[column] for _, row in points]
        axes.vlines(
            shares, [min(s) for _, _, s in each], [max(s) for _, _, s in each], lw=5, alpha=0.3, label="simulated"
        )
        axes.plot(shares, [measured for _, measured, _ in each], "ko", label="measured")
        axes.set(xlabel="offered, of what a closed loop got just before and after", title=title, yscale="log")
        axes.grid(alpha=0.3)
    panels[0].legend()
    drawing.savefig(path, dpi=100)


def show_sizes(costs: Costs, image_bytes: float) -> None:
    """Cores, GPUs and network for three rates."""
    print("| images/s | gateway cores | decode cores | tritonserver cores | A100s | H100s | Gbit/s in ", end="")
    print(f"| hosts of {HOST_CORES} cores and a GPU | of their GPUs in use |\n|" + " --- |" * 9)
    for rate in (1_000, 10_000, 100_000):
        s = size(rate, costs, image_bytes)
        gpus = " | ".join(f"{n:.2f}" if n < 1 else f"{n:.1f}" for n in s.gpus.values())
        print(
            f"| {rate:,} | {s.gateway_cores:.1f} | {s.decode_cores:.1f} | {s.triton_cores:.1f} | {gpus} "
            f"| {s.gbit_per_s:.1f} | {s.hosts} | {s.gpu_busy:.0%} |"
        )


def hosts_of(costs: Costs) -> dict[str, tuple[list[Station], dict[str, float]]]:
    """The Tritons that thresholds are wanted for."""
    return {
        "2 cores, no GPU": cpu_host(costs, 2),
        "8 cores, no GPU": cpu_host(costs, 8),
        f"{HOST_CORES} cores and an A100": gpu_host(costs, HOST_CORES, GPU_LIMITS["A100"] * GPU_SHARE),
    }


def show_thresholds(costs: Costs) -> None:
    """What one Triton shows at shares of its capacity."""
    for title, (stations, pools) in hosts_of(costs).items():
        full = capacity(stations, pools)
        print(f"{title}: {full:.0f} images/s\n")
        print("| load | images/s | p50 ms | p95 ms | waiting | in flight | batch | GPU in use |\n|" + " --- |" * 8)
        outcomes = curve(stations, pools, SHARES, 20_000 / full)
        for share, o in outcomes:
            gpu = f"{o.busy['gpu']:.0%}" if "gpu" in o.busy else "-"
            print(
                f"| {share:.0%} | {share * full:.0f} | {o.p50_s * MS:.1f} | {o.p95_s * MS:.1f} | {pending(o):.1f} "
                f"| {o.in_flight:.1f} | {o.mean_batch['classifier']:.1f} | {gpu} |"
            )
        waiting = np.interp(0.7, [share for share, _ in outcomes], [pending(o) for _, o in outcomes])
        print(f"\np95 is twice that at half the load from {knee(outcomes):.0%} on; at 70 % wait {waiting:.1f}.\n")


def show_door(costs: Costs) -> None:
    """Two cores that are offered 1.3 times what they can do, with and without the gateway's limit."""
    stations = one_machine(replace(costs, sender=0.0))
    full = capacity(stations, shared(2))
    for name, limit in (("with", ADMITTED), ("without", 10**6)):
        open_door = [replace(station, admits=limit) if station.admits else station for station in stations]
        o = simulate(open_door, shared(2), Load(rate=1.3 * full), 40)
        print(
            f"{name} the limit: {o.images_per_s / full:.0%} of the capacity answered, "
            f"p95 {o.p95_s:.1f} s, {o.refused:.0%} refused"
        )
    print(f"half of the limit in flight is {ADMITTED / 2 / full:.1f} s")


def show_scaling(costs: Costs) -> None:
    """Pods over a rise and fall of traffic, by what the autoscaler looks at."""
    stations, pools = gpu_host(costs, HOST_CORES, GPU_LIMITS["A100"] * GPU_SHARE)
    full = capacity(stations, pools)
    shown = [
        Signals(share, pending(outcome), outcome.busy["cores"], outcome.busy["gpu"])
        for share, outcome in curve(stations, pools, SHARES[:-2], 20_000 / full)
    ]
    at_70 = pending_at(0.7, shown)
    policies = {
        "GPU in use, 60 %": Policy(gpu=0.6),
        "waiting, as at 95 % of the load": Policy(waiting=shown[-1].waiting),
        "waiting, as at 70 %": Policy(waiting=at_70),
        "cores in use, 60 %": Policy(busy=BUSY),
        "cores in use, 60 %, or waiting, as at 95 %": Policy(busy=BUSY, waiting=shown[-1].waiting),
    }
    print("| looks at | overloaded, s | late images | mean pods | changes |\n|" + " --- |" * 5)
    for name, policy in policies.items():
        r = follow(policy, shown, pod=full)
        print(f"| {name} | {r.overloaded_s:.0f} | {r.late_share:.1%} | {r.mean_pods:.1f} | {r.changes} |")


def pending_at(load: float, shown: Sequence[Signals]) -> float:
    """Requests that wait at a share of the capacity."""
    return float(np.interp(load, [signals.load for signals in shown], [signals.waiting for signals in shown]))


if __name__ == "__main__":
    main()
