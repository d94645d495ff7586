"""What a Kubernetes autoscaler makes of traffic that rises and falls, by what it looks at: a fluid model.

The rules are those of the HorizontalPodAutoscaler and of the chart: every 15 s it wants `ceil(sum / aim)` pods, or the
most that any metric asks for; differences of less than 10 % count as none; up at once, at most doubled or two more a
minute; down to the most that was wanted in the last 5 minutes, one pod in 2 minutes. New pods serve after a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERIOD_S = 15
TOLERANCE = 0.1
STABLE_S = 300
DOWN_S = 120
UP_S = 60


@dataclass(frozen=True)
class Signals:
    """What one pod shows at a share of its capacity: requests that wait, and shares of cores and of the GPU in use."""

    load: float
    waiting: float
    busy: float
    gpu: float = 0.0


@dataclass(frozen=True)
class Policy:
    """What is aimed at in each pod; of several aims the one that asks for most pods counts."""

    waiting: float | None = None
    busy: float | None = None
    gpu: float | None = None

    def wanted(self, pods: int, mean: Signals) -> int:
        """Pods wanted when the `pods` show `mean` on average."""
        wanted = [1]
        for now, aim in ((mean.waiting, self.waiting), (mean.busy, self.busy), (mean.gpu, self.gpu)):
            if aim is not None:
                ratio = now / aim
                wanted.append(pods if abs(ratio - 1) <= TOLERANCE else math.ceil(pods * ratio))
        return max(wanted)


@dataclass(frozen=True)
class Report:
    """Of one run: how long more came than the pods could do, which share of images had to wait, and the pods."""

    overloaded_s: float
    late_share: float
    mean_pods: float
    changes: int


def day(images_per_s: float, seconds: int = 7200) -> list[float]:
    """From a tenth of the peak to the peak and back, second by second; in the middle half of it comes in 5 minutes."""
    rates = []
    for t in range(seconds):
        hill = 0.1 + 0.4 * math.sin(math.pi * t / seconds) ** 2
        rush = min(1.0, max(0.0, min(t - 0.4 * seconds, 0.6 * seconds - t) / 300))
        rates.append(images_per_s * (hill + 0.5 * rush))
    return rates


def follow(
    policy: Policy,
    shown: Sequence[Signals],
    *,
    pod: float,
    peak_pods: float = 6,
    start_s: int = 90,
    most: int = 12,
) -> Report:
    """Runs `day` through pods that do `pod` images a second each, started `start_s` after they were wanted.

    `shown` is a curve from queueing: what a pod shows at shares of its capacity below 1. Above that what is too much
    piles up in a backlog, which is late.
    """
    loads = [signals.load for signals in shown]
    traffic = day(pod * peak_pods)
    ready = 1  # pods that serve
    starting: list[float] = []  # times at which others will
    backlog = late = overloaded = area = 0.0
    history: list[tuple[int, int]] = []
    last_down = last_up = -(10**6)
    up_from = changes = 0
    for now, rate in enumerate(traffic):
        ready += sum(at <= now for at in starting)
        starting = [at for at in starting if at > now]
        served = min(rate + backlog, ready * pod)
        backlog = max(0.0, backlog + rate - served)
        if backlog > pod:  # more than a second of one pod's work waits
            overloaded += 1
            late += rate
        area += ready + len(starting)
        if now % PERIOD_S:
            continue
        pods = ready + len(starting)
        share = served / (ready * pod)

        def mean(name: str, share: float = share, serving: float = ready / pods) -> float:
            return serving * float(np.interp(share, loads, [getattr(signals, name) for signals in shown]))

        now_shown = Signals(share, mean("waiting") + backlog / pods, mean("busy"), mean("gpu"))
        wanted = min(most, policy.wanted(pods, now_shown))
        history = [(at, n) for at, n in history if at > now - STABLE_S] + [(now, wanted)]
        if wanted > pods:
            if now - last_up >= UP_S:
                last_up, up_from = now, pods
            limit = max(2 * up_from, up_from + 2)
            new = min(wanted, limit) - pods
            starting += [now + start_s] * max(0, new)
            changes += new > 0
        elif max(n for _, n in history) < pods and now - last_down >= DOWN_S and ready > 1 and not starting:
            ready -= 1
            last_down = now
            changes += 1
    return Report(overloaded, late / sum(traffic), area / len(traffic), changes)
