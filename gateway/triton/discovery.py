"""What Triton serves, learnt from Triton itself: models, tasks, labels, and whether they really answer.

A model belongs to the gate when its `config.pbtxt` declares a `task` in its parameters. Its labels come with a
real inference through Triton's classification extension, so that they are named once, beside the classifier.
Readiness is such an inference too, not Triton's word.

An engine's certificate comes with the configuration of the step that runs it. A model whose certificate is of
another version, or of other preprocessing, than what runs would answer wrongly and look well: it is not ready.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import (
    DeadlineExceeded,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    TidegateError,
    UpstreamUnavailable,
)
from gateway.observe import metrics
from gateway.triton import ModelConfig, ModelState, Triton
from gateway.triton.certificates import find_certificates, not_ready
from gateway.triton.describe import TASK, describe, probe
from gateway.triton.model import TASKS, Model
from gateway.triton.pool import NEVER, Member, Pool

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0  # an orchestrator's own probe should not time out first
LEARN_TIMEOUT_S = 8.0  # for labels: a gateway that starts while Triton is busy must get them, too
PATIENCE_S = 2.5  # of a caller who names a model that is not known yet
RETRY_INTERVAL_S = 0.5
FRESH_S = 1.0
REDISCOVER_S = 30.0
STATES = ("ready", "not_loaded", "certificate", "unusable")


@dataclass(frozen=True)
class Readiness:
    """What the last probe showed (no `error`: it answered), and when (monotonic seconds)."""

    error: TidegateError | None
    checked_at: float

    @property
    def ready(self) -> bool:
        return self.error is None


class Discovery:
    """The models of a Triton, or of all Tritons of a pool, kept up to date by `watch`.

    A model with random weights is not ready as the default one, unless `allow_random_weights`: a caller that names
    no model asks what is on a picture, not how fast the network runs.
    """

    def __init__(
        self, triton: Triton, default_model: str, interval_s: float, *, allow_random_weights: bool = False
    ) -> None:
        pool = triton if isinstance(triton, Pool) else Pool([triton])
        self._default = default_model
        self._catalogues = {
            member.triton.endpoint: Catalogue(member, default_model, interval_s, allow_random_weights, self._count)
            for member in pool.members
        }

    async def watch(self) -> None:
        """Probes every Triton for ever."""
        await asyncio.gather(*(catalogue.watch() for catalogue in self._catalogues.values()))

    async def check(self, max_age_s: float = FRESH_S) -> Readiness:
        """Whether any Triton answers, as seen at most `max_age_s` ago; any number of callers share one probe."""
        best, *others = self._best_first()
        if not (await best.check(max_age_s)).ready:
            await asyncio.gather(*(each.check(max_age_s) for each in others))
        return self.readiness

    @property
    def readiness(self) -> Readiness:
        """Of the Triton that does best."""
        return self._best_first()[0].readiness

    def models(self) -> list[Model]:
        """Those that callers can name; their candidates are `candidates`."""
        models = {name: model for each in reversed(self._best_first()) for name, model in each.models.items()}
        return [models[name] for name in sorted(models) if models[name].traffic is None]

    def candidates(self, model: Model) -> list[Model]:
        """Other versions of a model, which are served beside it."""
        return [each for each in self._candidates(model.name) if each.task is model.task]

    def shares(self, name: str) -> list[tuple[Model, float]]:
        """Every version of a model, the main one first if it can be used, with its share of requests that name none."""
        beside = self._candidates(name)
        main = next((each.models[name] for each in self._best_first() if name in each.models), None)
        if main is None:
            return [(each, 0.0) for each in beside]
        weights = [each.traffic.weight if each.traffic and each.may_stand_in_for(main) else 0.0 for each in beside]
        return [(main, max(0.0, 1 - sum(weights))), *zip(beside, weights, strict=True)]

    def _candidates(self, name: str) -> list[Model]:
        found: dict[str, Model] = {}
        for catalogue in self._catalogues.values():
            for each in catalogue.candidates:
                if each.name == name:
                    found.setdefault(each.served_as, each)
        return list(found.values())

    def broken(self) -> list[str]:
        """Models that a Triton knows and that cannot be used now."""
        catalogues = self._catalogues.values()
        return sorted({n for each in catalogues for n in each.broken} - {n for each in catalogues for n in each.models})

    async def get(self, name: str | None = None, version: str | None = None, outputs: Collection[str] = ()) -> Model:
        """The model to ask, in the version that is named, or else in one of those that take traffic, by their weights,
        and give all of `outputs`.

        Raises `ModelNotFound`, `ModelNotReady` or `UpstreamUnavailable`.
        """
        name = name or self._default
        if version is None:
            return self._drawn(await self.main(name), outputs)
        for each in self._candidates(name):
            if each.version == version:
                return each
        main = await self.main(name)  # which may have to be learnt first, with all that is beside it
        for each in (main, *self._candidates(name)):
            if each.version == version:
                return each
        raise ModelNotFound("The model is not served in this version; GET /v1/models/{name} lists those that are.")

    def _drawn(self, main: Model, outputs: Collection[str]) -> Model:
        """The main version, or a candidate that may stand in for it, by their weights."""
        candidates = self.candidates(main)
        lot = random.random() if candidates else 1.0  # noqa: S311  # of traffic, not of secrets
        for each in candidates:
            assert each.traffic is not None
            if not each.may_stand_in_for(main) or not each.outputs.issuperset(outputs):
                continue
            if (lot := lot - each.traffic.weight) < 0:
                return each
        return main

    async def main(self, name: str) -> Model:
        """The main version of the model; raises as `get` does."""
        if not any(name in each.models or name in each.broken for each in self._catalogues.values()):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.check(), PATIENCE_S)
        best_first = self._best_first()
        for each in best_first:
            if name in each.models and each.models[name].traffic is None:
                return each.models[name]
        if self.readiness.error and not any(each.states for each in best_first):
            raise self.readiness.error
        reasons = [each.broken[name] for each in best_first if name in each.broken]
        if reasons or name == self._default:
            raise ModelNotReady("The model is not ready.", private=reasons[0].private if reasons else "not served")
        raise ModelNotFound("There is no model of this name; GET /v1/models lists them.")

    async def of_version(self, model: Model, version: str, endpoint: str) -> Model:
        """`model` as of the version that answered at `endpoint`: it may be another than the one that was asked for.

        Raises `ModelNotReady` when it was exchanged once more, an `UpstreamError` when Triton cannot be asked.
        """
        there = self._at(endpoint)
        # Of several Tritons each names its own labels, even if all call the version by the same number.
        known = there.models.get(model.served_as, model if len(self._catalogues) == 1 else None)
        return known if known and known.version == version else await there.of_version(model.served_as, version)

    def proved(self, model: Model, endpoint: str) -> None:
        """A real request was answered at `endpoint` by `model`: for the default model that is as good as a probe."""
        if model.served_as == self._default:
            self._at(endpoint).proved_at = time.monotonic()

    def _at(self, endpoint: str) -> Catalogue:
        return self._catalogues[endpoint] if len(self._catalogues) > 1 else next(iter(self._catalogues.values()))

    def _best_first(self) -> list[Catalogue]:
        """Those that are ready, then those that can be reached."""
        return sorted(self._catalogues.values(), key=lambda each: _badness(each.readiness))

    def _count(self) -> None:
        """Of each state the most models that any Triton has."""
        for state in STATES:
            metrics.MODELS.labels(state).set(max(each.counts[state] for each in self._catalogues.values()))


class Catalogue:
    """What one Triton serves. `models` can be used, `broken` cannot, `states` is its own index of both.

    `candidates` are those of the models that are versions beside a main one.
    """

    def __init__(
        self,
        member: Member,
        default_model: str,
        interval_s: float,
        allow_random_weights: bool,
        on_learnt: Callable[[], None],
    ) -> None:
        self._member = member
        self._triton = member.triton
        self._default = default_model
        self._interval_s = interval_s
        self._allow_random_weights = allow_random_weights
        self._on_learnt = on_learnt
        self.models: dict[str, Model] = {}
        self.candidates: tuple[Model, ...] = ()
        self._unfit: set[str] = set()
        self.broken: dict[str, TidegateError] = {}
        self.states: dict[str, ModelState] = {}
        self.counts = dict.fromkeys(STATES, 0)
        self.proved_at = NEVER
        self._learnt_at = NEVER
        self._lock = asyncio.Lock()
        self.readiness = Readiness(UpstreamUnavailable("The inference server was not reached yet."), NEVER)

    async def watch(self) -> None:
        """Probes for ever: often while Triton is away or a call to it has failed, seldom while it answers."""
        while True:
            self._member.doubt.clear()
            await self.check(max_age_s=0)
            await asyncio.sleep(RETRY_INTERVAL_S)
            if self.readiness.ready:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._member.doubt.wait(), self._interval_s - RETRY_INTERVAL_S)

    async def check(self, max_age_s: float) -> Readiness:
        """The state of this Triton as seen at most `max_age_s` ago."""
        asked_at = time.monotonic()
        async with self._lock:
            if self.readiness.checked_at < asked_at - max_age_s:
                await self._probe()
        return self.readiness

    async def of_version(self, name: str, version: str) -> Model:
        """The model as of this version, which is the one that is served here, or raises `ModelNotReady`."""
        async with self._lock:  # those who come together ask once
            known = self.models.get(name)
            if known is None or known.version != version:
                await self._learn()
                known = self.models.get(name)
        if known is None or known.version != version:
            raise not_ready(f"version {version} of {name} answered, and is not served any more")
        return known

    async def _probe(self) -> None:
        try:
            stale = time.monotonic() - self._learnt_at > REDISCOVER_S
            if stale or not self.readiness.ready:
                await self._learn()
            if self._default not in self.models:
                raise self.broken.get(self._default) or ModelNotReady(
                    "The default model is not served.", private=f"no {self._default} with a task"
                )
            # Under full load a probe would wait behind the very requests that prove the same.
            if self.proved_at < max(time.monotonic() - FRESH_S, self._member.failed_at):
                await probe(self._triton, self.models[self._default], PROBE_TIMEOUT_S)
        except TidegateError as error:
            if isinstance(error, UpstreamUnavailable):
                self.states = {}
            self._member.probed(error)
            self._report(_unready(error))
        else:
            self._member.probed(None)
            self._report(None)

    def _report(self, error: TidegateError | None) -> None:
        endpoint, before = self._triton.endpoint, self.readiness
        if error is None and before.error is not None:
            log.info("Triton is ready", extra={"endpoint": endpoint, "models": ", ".join(self.models)})
        elif error is not None and (before.checked_at == NEVER or type(error) is not type(before.error)):
            reason = error.private or error.detail
            log.warning("Triton is not ready", extra={"endpoint": endpoint, "reason": reason})
        self.readiness = Readiness(error, time.monotonic())
        metrics.TRITON_READY.labels(endpoint).set(error is None)

    async def _learn(self) -> None:
        """Looks, and looks again when a good model is suddenly none: Triton exchanges a version step by step."""
        for again in (True, True, True, False):
            models, broken, states = await self._look()
            if not again or not self.models.keys() & broken.keys():
                break
            await asyncio.sleep(RETRY_INTERVAL_S)
        for name, error in broken.items():
            before, reason = self.broken.get(name), error.private or error.detail
            if before is None or reason != (before.private or before.detail):  # else it is known already
                log.warning("A model cannot be used", extra={"model": name, "reason": reason})
        self.models, self.broken, self.states = models, broken, states
        self.candidates = tuple(model for _, model in sorted(models.items()) if model.traffic is not None)
        for each in self.candidates:
            main = models.get(each.name)
            unfit = each.traffic is not None and each.traffic.weight > 0 and main and not each.may_stand_in_for(main)
            if unfit and each.served_as not in self._unfit:
                reason = "it has other lengths, fewer classes or other categories than the main version"
                log.warning("A candidate gets none of its weight", extra={"model": each.served_as, "reason": reason})
            (self._unfit.add if unfit else self._unfit.discard)(each.served_as)
        self._learnt_at = time.monotonic()

    async def _look(self) -> tuple[dict[str, Model], dict[str, TidegateError], dict[str, ModelState]]:
        """The models that can be used, those that cannot, and Triton's index, as they are now."""
        states: dict[str, ModelState] = {}
        for state in await self._triton.index(timeout=PROBE_TIMEOUT_S):  # a line for each version
            if state.name not in states or _precedence(state) > _precedence(states[state.name]):
                states[state.name] = state
        models: dict[str, Model] = {}
        broken: dict[str, TidegateError] = {}
        configs: dict[str, ModelConfig] = {}
        for name, state in states.items():
            if state.ready:
                configs[name] = await self._triton.config(name, timeout=PROBE_TIMEOUT_S)
            else:
                broken[name] = not_ready(state.reason or "not loaded")
        ours = [name for name, config in configs.items() if TASK in config.parameters]  # others are steps, or strangers
        # Side by side: under load each one waits in Triton's queues.
        looked = await asyncio.gather(*(self._look_at(name, configs, states) for name in ours))
        counts = dict.fromkeys(STATES, 0)
        counts["not_loaded"] = len(broken)
        for name, (count_as, found) in zip(ours, looked, strict=True):
            counts[count_as] += 1
            if isinstance(found, Model):
                models[name] = found
            else:
                broken[name] = found
        self.counts = counts
        self._on_learnt()
        return models, broken, states

    async def _look_at(
        self, name: str, configs: Mapping[str, ModelConfig], states: Mapping[str, ModelState]
    ) -> tuple[str, Model | TidegateError]:
        """One of `STATES`, and the model, or what speaks against serving it: that is not the others' trouble."""
        config = configs[name]
        # Always what it is if the next line raises.
        count_as = "certificate" if all(step.model in configs for step in config.steps) else "not_loaded"
        try:
            certificates = find_certificates(config, configs, states)
            count_as = "unusable"
            return "ready", await self._admit(config, certificates)
        except UpstreamUnavailable:
            raise
        except TidegateError as error:
            return count_as, error

    async def _admit(self, config: ModelConfig, certified: list[tuple[ModelConfig, Mapping[str, Any]]]) -> Model:
        """The model as Triton shows it now, with its certificates; raises what speaks against serving it."""
        task = TASKS.get(config.parameters[TASK])
        main_first = sorted(certified, key=lambda each: not (task and any(map(task.is_output, each[0].outputs))))
        certificates = tuple(certificate for _, certificate in main_first)
        timeout = PROBE_TIMEOUT_S if config.name in self.models else LEARN_TIMEOUT_S
        try:
            model = await describe(self._triton, config, certificates, timeout)
        except (DeadlineExceeded, Overloaded):
            if config.name not in self.models:
                raise
            model = replace(self.models[config.name], certificates=certificates)  # busy is not broken
        if model.weights == "random" and config.name == self._default and not self._allow_random_weights:
            raise not_ready("its weights are random, and TIDEGATE_ALLOW_RANDOM_WEIGHTS is not true")
        return model


def _badness(readiness: Readiness) -> int:
    return 0 if readiness.ready else 2 if isinstance(readiness.error, UpstreamUnavailable) else 1


def _precedence(state: ModelState) -> tuple[bool, int, str]:
    """Of a model's versions the highest one that is ready answers, as `model_version: -1` of a step says."""
    return (state.ready, len(state.version), state.version)  # longer numbers are higher


def _unready(error: TidegateError) -> TidegateError:
    """What a failed probe means: nobody there, or a model that does not work."""
    private = error.private or error.detail
    if isinstance(error, UpstreamUnavailable | ModelNotReady):
        return error
    if isinstance(error, DeadlineExceeded):
        return UpstreamUnavailable("The inference server does not answer.", private=private)
    return ModelNotReady("The model does not answer as it should.", private=private)
