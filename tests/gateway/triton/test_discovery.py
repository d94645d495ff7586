"""What is learnt from Triton when not all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.errors import DeadlineExceeded, ModelNotFound, ModelNotReady, UpstreamUnavailable
from gateway.triton import Answer, ModelState, Tensor
from gateway.triton import discovery as discovery_module
from gateway.triton.discovery import CLASSIFICATION, Discovery
from gateway.triton.fake import FakeTriton


class Two(FakeTriton):
    """Serves a second model, whose state the test sets."""

    other = ModelState("other", "1", True)

    async def index(self, *, timeout: float) -> list[ModelState]:
        return [*await super().index(timeout=timeout), self.other]


class Nameless(FakeTriton):
    """Has lost the label of its last class."""

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        answer = await super().infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)
        if top_classes:
            strings = answer.outputs[CLASSIFICATION]
            strings[0, -1] = strings[0, -1].rsplit(b":", 1)[0]
        return answer


def test_a_model_without_all_labels_is_not_ready() -> None:
    """No label is made up for a class that has none."""

    async def work() -> None:
        discovery = Discovery(Nameless(), "ensemble_model", 5)
        assert not (await discovery.check()).ready
        with pytest.raises(ModelNotReady):
            await discovery.get(None)

    asyncio.run(work())


def test_a_broken_model_does_not_take_the_others_down() -> None:
    """It is not ready by itself; the default model answers."""

    async def work() -> None:
        triton = Two()
        triton.other = ModelState("other", "1", False, "failed to load")
        discovery = Discovery(triton, "ensemble_model", 5)
        assert (await discovery.check()).ready
        assert (await discovery.get(None)).name == "ensemble_model"
        assert discovery.broken() == ["other"]
        with pytest.raises(ModelNotReady):
            await discovery.get("other")
        with pytest.raises(ModelNotFound):
            await discovery.get("third")

    asyncio.run(work())


def test_callers_share_one_probe(fake: FakeTriton) -> None:
    """A hundred questions at a time are one inference at Triton."""

    async def work() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        await discovery.check()
        fake.asked.clear()
        await asyncio.gather(*(discovery.check(max_age_s=0) for _ in range(100)))
        assert len(fake.asked) <= 2

    asyncio.run(work())


def test_models_come_back_with_triton(fake: FakeTriton) -> None:
    """After an outage everything is learnt again."""

    async def work() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        fake.failure = UpstreamUnavailable("gone")
        with pytest.raises(UpstreamUnavailable):
            await discovery.get(None)
        fake.failure = None
        await discovery.check(max_age_s=0)
        assert (await discovery.get(None)).name == "ensemble_model"

    asyncio.run(work())


class Busy(FakeTriton):
    """Has no time for inferences once it is `busy`."""

    busy = False

    async def infer(
        self, model: str, inputs: Sequence[Tensor], outputs: Sequence[str], *, timeout: float, top_classes: int = 0
    ) -> Answer:
        if self.busy:
            raise DeadlineExceeded("too slow")
        return await super().infer(model, inputs, outputs, timeout=timeout, top_classes=top_classes)


def test_a_busy_model_is_not_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load a probe may come too late: the model stays known, and real answers prove that all is well."""
    monkeypatch.setattr(discovery_module, "REDISCOVER_S", 0)

    async def work() -> None:
        triton = Busy()
        discovery = Discovery(triton, "ensemble_model", 5)
        model = await discovery.get(None)
        triton.busy = True
        discovery.proved(model)
        assert (await discovery.check(max_age_s=0)).ready
        assert await discovery.get(None) == model
        discovery.proved(replace(model, name="other"))
        monkeypatch.setattr(discovery_module, "FRESH_S", 0)
        assert not (await discovery.check(max_age_s=0)).ready  # no proof, and no answer to the probe
        assert await discovery.get(None) == model

    asyncio.run(work())
