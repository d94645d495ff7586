"""A small simulation of the way of a photo: stations with queues and dynamic batching that share cores.

It follows single requests from event to event. Jobs that need the same cores at the same time share them evenly, as
an operating system does. What it leaves out: the cost of switching, caches, networks, and that photos differ in size.
`benchmarks/capacity.py` uses it, and says how well it agrees with the real stack.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Station:
    """A step that every request passes: what its work costs, and how much of it goes on at once.

    A batch takes `per_batch_s` seconds of one core and then `per_image_s` core-seconds an image, on as many cores
    as it has images, up to `threads`; on all `threads` in any case where an image `splits`. On a GPU a "core" is the
    whole GPU. `instances` batches are in work at once; with `takes_turns` only one of them is past its `per_batch_s`.
    """

    name: str
    pool: str
    per_image_s: float
    per_batch_s: float = 0.0
    max_batch: int = 1
    delay_s: float = 0.0
    instances: int = 1
    threads: int = 1
    splits: bool = False
    takes_turns: bool = False
    admits: int | None = None
    """Images that may be past this station and unanswered; a request that would be one too many is refused."""


@dataclass(frozen=True)
class Load:
    """Requests a second that arrive at random (an open loop), or clients that each wait for their answer (closed)."""

    rate: float | None = None
    clients: int | None = None
    images: int = 1
    """In each request."""


@dataclass(frozen=True)
class Outcome:
    """What a simulated span showed, after its warming up. Per second are images; times are in seconds."""

    images_per_s: float
    refused: float
    """Share of the requests."""
    p50_s: float
    p95_s: float
    in_flight: float
    """Images admitted and unanswered, on average."""
    mean_batch: Mapping[str, float]
    pending: Mapping[str, float]
    """Requests that wait at a station, on average: Triton's `nv_inference_pending_request_count`."""
    busy: Mapping[str, float]
    """Share of a pool's cores in use."""


@dataclass(eq=False)
class _Request:
    arrived: float
    images: int
    stage: int = 0
    queued: float = 0.0


@dataclass(eq=False)
class _Job:
    """A batch at work: two phases, each core-seconds left and the most cores that it can use."""

    station: int
    requests: list[_Request]
    phases: list[tuple[float, int]]


@dataclass
class _Queue:
    waiting: deque[_Request] = field(default_factory=deque)
    waiting_images: int = 0
    running: int = 0
    computing: int = 0
    turn: deque[_Job] = field(default_factory=deque)
    batches: int = 0
    images: int = 0
    waited: float = 0.0


def simulate(
    stations: Sequence[Station], pools: Mapping[str, float], load: Load, seconds: float, *, seed: int = 0
) -> Outcome:
    """Runs `load` through the `stations`, in their order, for `seconds`; the first fifth of them is not counted.

    `pools` says how many cores each pool has. The same `seed` gives the same outcome.
    """
    return _Simulation(stations, pools, load, seconds, seed).run()


class _Simulation:
    def __init__(
        self, stations: Sequence[Station], pools: Mapping[str, float], load: Load, seconds: float, seed: int
    ) -> None:
        self._stations, self._pools, self._load, self._seconds = stations, pools, load, seconds
        self._warm = seconds / 5
        self._queues = [_Queue() for _ in stations]
        self._jobs: dict[str, list[_Job]] = {name: [] for name in pools}
        self._now = 0.0
        self._events: list[tuple[float, int, int]] = []  # time, tie-breaker, station to look at; -1: an arrival
        self._ties = 0
        self._random = np.random.default_rng(seed)
        self._latencies: list[float] = []
        self._answered = self._offered = self._refused = self._in_flight = 0
        self._in_flight_area = 0.0
        self._busy = dict.fromkeys(pools, 0.0)

    def run(self) -> Outcome:
        if self._load.rate is not None:
            self._schedule(self._gap(), -1)
        for _ in range(self._load.clients or 0):
            self._arrive()
        while self._now < self._seconds:
            self._step()
        return self._outcome()

    def _step(self) -> None:
        """On to the next event: an arrival, the end of a delay, or of a job's phase."""
        until = min(self._events[0][0] if self._events else self._seconds, self._seconds)
        for name in self._pools:
            share = self._share(name)
            for job in self._jobs[name]:
                left, width = job.phases[0]
                until = min(until, self._now + left / (width * share))
        self._advance(until)
        for name in self._pools:
            for job in [job for job in self._jobs[name] if job.phases[0][0] <= 1e-12]:
                self._end_phase(name, job)
        while self._events and self._events[0][0] <= self._now:
            _, _, station = heapq.heappop(self._events)
            if station >= 0:
                self._start(station)
            else:
                self._arrive()
                self._schedule(self._gap(), -1)

    def _advance(self, until: float) -> None:
        span, counts = until - self._now, self._now >= self._warm
        for name, cores in self._pools.items():
            share = self._share(name)
            for job in self._jobs[name]:
                left, width = job.phases[0]
                job.phases[0] = (left - width * share * span, width)
                self._busy[name] += counts * width * share * span / cores
        self._in_flight_area += counts * span * self._in_flight
        self._now = until

    def _share(self, pool: str) -> float:
        """What each of the cores that are wanted gets: 1, or less when more are wanted than there are."""
        wanted = sum(job.phases[0][1] for job in self._jobs[pool])
        return min(1.0, self._pools[pool] / wanted) if wanted else 1.0

    def _gap(self) -> float:
        assert self._load.rate is not None
        return float(self._random.exponential(1 / self._load.rate))

    def _schedule(self, after: float, station: int) -> None:
        self._ties += 1
        heapq.heappush(self._events, (self._now + after, self._ties, station))

    def _arrive(self) -> None:
        self._offered += self._now >= self._warm
        self._enqueue(_Request(self._now, self._load.images))

    def _enqueue(self, request: _Request) -> None:
        request.queued = self._now
        self._queues[request.stage].waiting.append(request)
        self._queues[request.stage].waiting_images += request.images
        if delay := self._stations[request.stage].delay_s:
            self._schedule(delay, request.stage)
        self._start(request.stage)

    def _start(self, index: int) -> None:
        """Batches what waits, as long as an instance is free, and the batch is full or its oldest has waited."""
        station, queue = self._stations[index], self._queues[index]
        while queue.waiting and queue.running < station.instances:
            full = queue.waiting_images >= station.max_batch
            if not full and self._now - queue.waiting[0].queued < station.delay_s - 1e-12:
                return
            requests = [queue.waiting.popleft()]
            images = requests[0].images
            while queue.waiting and images + queue.waiting[0].images <= station.max_batch:
                images += queue.waiting[0].images
                requests.append(queue.waiting.popleft())
            queue.waiting_images -= images
            queue.running += 1
            if self._now >= self._warm:
                queue.batches += 1
                queue.images += images
                queue.waited += sum(self._now - request.queued for request in requests)
            width = station.threads if station.splits else min(images, station.threads)
            phases = [(station.per_batch_s, 1), (images * station.per_image_s, width)]
            self._jobs[station.pool].append(_Job(index, requests, phases))

    def _end_phase(self, pool: str, job: _Job) -> None:
        station, queue = self._stations[job.station], self._queues[job.station]
        del job.phases[0]
        if job.phases:  # on to the images
            if station.takes_turns and queue.computing:
                self._jobs[pool].remove(job)
                queue.turn.append(job)
            queue.computing += 1
            return
        queue.computing -= 1
        queue.running -= 1
        self._jobs[pool].remove(job)
        if queue.turn:
            self._jobs[pool].append(queue.turn.popleft())
        for request in job.requests:
            self._leave(request, station)
        self._start(job.station)

    def _leave(self, request: _Request, station: Station) -> None:
        if station.admits is not None:
            if self._in_flight and self._in_flight + request.images > station.admits:
                self._refused += self._now >= self._warm
                self._again()
                return
            self._in_flight += request.images
        request.stage += 1
        if request.stage < len(self._stations):
            self._enqueue(request)
            return
        if any(station.admits is not None for station in self._stations):
            self._in_flight -= request.images
        if self._now >= self._warm:
            self._answered += request.images
            self._latencies.append(self._now - request.arrived)
        self._again()

    def _again(self) -> None:
        """A client of a closed loop sends its next request."""
        if self._load.clients:
            self._arrive()

    def _outcome(self) -> Outcome:
        span = self._seconds - self._warm
        p50, p95 = np.percentile(self._latencies, [50, 95]) if self._latencies else (float("nan"), float("nan"))
        each = list(zip(self._stations, self._queues, strict=True))
        return Outcome(
            images_per_s=self._answered / span,
            refused=self._refused / self._offered if self._offered else 0.0,
            p50_s=float(p50),
            p95_s=float(p95),
            in_flight=self._in_flight_area / span,
            mean_batch={s.name: q.images / q.batches if q.batches else 0.0 for s, q in each},
            pending={s.name: q.waited / span for s, q in each},
            busy={name: area / span for name, area in self._busy.items()},
        )
