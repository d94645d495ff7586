"""A candidate that is asked what the main version answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.admission import Admission, Deadline
from gateway.errors import UpstreamUnavailable
from gateway.images import ImageLimits
from gateway.inference import Inference, Question
from gateway.inputs import kinds
from gateway.observe import metrics
from gateway.shadow import AT_ONCE, Shadow
from gateway.triton import Answer, Tensor
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING
from tests.pictures import encode, noise

PICTURES = [encode(noise(8, 8, seed)) for seed in range(3)]
CANDIDATE = "ensemble_model.v2"


class Two(FakeTriton):
    """Serves a candidate that may be slow, fail, or see something else."""

    known = False
    """Whether the gateway has learnt of it; until then it is well."""
    slow_s = 0.0
    fails = False
    upside_down = False

    def __init__(self, shadow: str = "1", task: str = "classify") -> None:
        super().__init__()
        if task != "classify":
            self.serve("ensemble_model", task)
        self.serve(CANDIDATE, task, version_of="ensemble_model", shadow=shadow)
        self.versions[CANDIDATE] = "2"
        self.begun = 0

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        answer = await super().infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)
        if model == CANDIDATE and self.known:
            self.begun += 1
            await asyncio.sleep(self.slow_s)
            if self.fails:
                raise UpstreamUnavailable("gone")
            if self.upside_down:
                outputs_of = {name: array[:, ::-1] for name, array in answer.outputs.items()}
                return Answer(answer.model_version, outputs_of, answer.endpoint)
        return answer

    def _label(self, index: int, version: str) -> str:
        return f"class {index}"


def counted() -> dict[str, float]:
    samples = [s for metric in metrics.SHADOW.collect() for s in metric.samples if s.name.endswith("_total")]
    return {s.labels["outcome"]: s.value for s in samples if s.labels["model"] == "ensemble_model"}


async def asked(triton: Two, requests: int = 1, output: str = CLASSIFICATION, wait: bool = True) -> dict[str, float]:
    """What was counted meanwhile, by outcome."""
    before = counted()
    discovery = Discovery(triton, "ensemble_model", 5)
    await discovery.check()
    admission = Admission(100, 10**9, 60)
    shadow = Shadow(triton, discovery, admission, 5)
    inference = Inference(triton, discovery, admission, kinds(ImageLimits(10**6, 10**6), 1000), None, shadow)
    triton.known = True
    for _ in range(requests):
        model = await discovery.get("ensemble_model", "1")
        await inference.answer(list(PICTURES), Question(model, (output,)), Deadline.after(5))
    if wait:
        await shadow.rest()
    await shadow.close()
    return {outcome: value - before.get(outcome, 0) for outcome, value in counted().items()}


def run(work: Any) -> dict[str, float]:
    return {outcome: count for outcome, count in asyncio.run(work).items() if count}


def test_agreement_is_counted_for_each_image() -> None:
    """The same best class is agreement, another one is not."""
    assert run(asked(Two())) == {"agree": 3}
    other = Two()
    other.upside_down = True
    assert run(asked(other)) == {"differ": 3}


def test_embeddings_agree_when_they_point_the_same_way() -> None:
    """Features have no best class."""
    assert run(asked(Two(task="embed"), output=EMBEDDING)) == {"agree": 3}
    other = Two(task="embed")
    other.upside_down = True
    assert run(asked(other, output=EMBEDDING)) == {"differ": 3}


def test_only_its_share_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance, for each call by itself; a share of 0 is none at all."""
    assert run(asked(Two(shadow="0"))) == {}
    lots = iter([0.9, 0.9, 0.1, 0.9, 0.9, 0.5])  # one of three is for the weight, the next for the shadow
    monkeypatch.setattr("random.random", lambda: next(lots))
    triton = Two(shadow="0.5")
    assert run(asked(triton, requests=3)) in ({"agree": 3}, {"agree": 6})
    assert 1 <= triton.begun <= 2


def test_nobody_waits_for_a_candidate() -> None:
    """While it takes for ever, answers are given; what it would have too much of is skipped, and counted."""
    triton = Two()
    triton.slow_s = 3600

    async def work() -> dict[str, float]:
        return await asyncio.wait_for(asked(triton, requests=AT_ONCE + 2, wait=False), 10)

    found = run(work())
    assert found["skipped"] == 2 * 3
    assert triton.begun == AT_ONCE


def test_a_candidate_that_fails_hurts_nobody() -> None:
    """It is counted, and the answer was given."""
    triton = Two()
    triton.fails = True
    assert run(asked(triton)) == {"failed": 3}


def test_another_version_than_the_one_that_is_known_is_no_comparison() -> None:
    """While a candidate is exchanged, its labels may be others."""

    class Exchanged(Two):
        async def infer(self, model: str, *arguments: Any, **keywords: Any) -> Answer:
            if self.known:
                self.versions[CANDIDATE] = "3"
            return await super().infer(model, *arguments, **keywords)

    assert run(asked(Exchanged())) == {"failed": 3}
