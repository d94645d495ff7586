"""What is learnt from Triton when not all is well."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import DeadlineExceeded, ModelNotFound, ModelNotReady, UpstreamUnavailable
from gateway.triton import Answer, ModelConfig, ModelState, Step, Tensor
from gateway.triton import discovery as discovery_module
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.tensors import CLASSIFICATION


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
        discovery.proved(model, "fake")
        assert (await discovery.check(max_age_s=0)).ready
        assert await discovery.get(None) == model
        discovery.proved(replace(model, name="other"), "fake")
        monkeypatch.setattr(discovery_module, "FRESH_S", 0)
        assert not (await discovery.check(max_age_s=0)).ready  # no proof, and no answer to the probe
        assert await discovery.get(None) == model

    asyncio.run(work())


def test_a_busy_triton_can_be_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that starts under full load gets the labels, though a probe would come too late; callers wait less."""
    monkeypatch.setattr(discovery_module, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(discovery_module, "PATIENCE_S", 0.1)

    async def work() -> None:
        triton = FakeTriton()
        triton.delay = 0.3
        discovery = Discovery(triton, "ensemble_model", 5)
        watch = asyncio.create_task(discovery.watch())
        await asyncio.sleep(0)
        with pytest.raises(UpstreamUnavailable):
            await discovery.get(None)
        while True:
            await asyncio.sleep(0.05)
            with suppress(UpstreamUnavailable):
                assert (await discovery.get(None)).name == "ensemble_model"
                break
        watch.cancel()

    asyncio.run(work())


PIXELS = "ab" * 32


def certify(fake: FakeTriton, pixels: str | None = PIXELS, **changes: Any) -> dict[str, Any]:
    """Gives the fake's classifier a certificate, which it returns, and its preprocessor the hash of its `pixels`."""
    certificate = {
        "schema": 1,
        "version": "1",
        "precision": "fp16",
        "source": {"name": "efficientnet_lite0", "weights": "pretrained"},
        "preprocess": {"sha256": "ef" * 32, "pixels_sha256": PIXELS},
        "anything": [1.5, None, {"else": "é"}],
        **changes,
    }
    fake.parameters["classifier"]["certificate"] = json.dumps(certificate)
    if pixels is not None:
        fake.parameters["preprocessor"]["pixels_sha256"] = pixels
    return certificate


def private_reason(triton: FakeTriton) -> str:
    """Why the default model is not ready; the caller reads none of it."""

    async def work() -> str:
        discovery = Discovery(triton, "ensemble_model", 5)
        assert not (await discovery.check()).ready
        assert discovery.broken() == ["ensemble_model"]
        with pytest.raises(ModelNotReady) as error:
            await discovery.get(None)
        assert error.value.detail == "The model is not ready."
        return error.value.private or ""

    return asyncio.run(work())


def test_a_certificate_is_passed_on_as_it_is(fake: FakeTriton) -> None:
    """All its keys, those of later builders included; without one there is none."""

    async def work() -> None:
        assert (await Discovery(fake, "ensemble_model", 5).get(None)).certificate is None
        certificate = certify(fake)
        model = await Discovery(fake, "ensemble_model", 5).get(None)
        assert model.certificate == certificate
        assert (model.precision, model.weights) == ("fp16", "pretrained")

    asyncio.run(work())


def test_every_configuration_is_asked_for_once() -> None:
    """The steps are in the index like every model: following an ensemble to them costs no further call."""
    asked = []

    class Counting(FakeTriton):
        async def config(self, model: str, *, timeout: float) -> ModelConfig:
            asked.append(model)
            return await super().config(model, timeout=timeout)

    certify(counting := Counting())
    assert asyncio.run(Discovery(counting, "ensemble_model", 5).check()).ready
    assert sorted(asked) == ["classifier", "ensemble_model", "preprocessor"]


def test_other_preprocessing_than_the_certified_is_not_ready(fake: FakeTriton) -> None:
    """The log names both hashes."""
    certify(fake, pixels="cd" * 32)
    reason = private_reason(fake)
    assert PIXELS in reason
    assert "cd" * 32 in reason


def test_a_preprocessor_that_does_not_say_what_it_runs_is_not_ready(fake: FakeTriton) -> None:
    """Nor is a certified network without one: nobody can say that its pixels are those that were measured."""
    certify(fake, pixels=None)
    assert "none in preprocessor" in private_reason(fake)
    del fake.parameters["preprocessor"]["preprocess"]
    assert "no preprocessor" in private_reason(fake)


def test_a_certificate_of_another_version_is_not_ready(fake: FakeTriton) -> None:
    """It would be shown for an engine that it does not describe."""
    certify(fake, version="2")
    assert "version 2, and version 1 is served" in private_reason(fake)


class Versions(FakeTriton):
    """Serves the classifier's versions 9 and 10, of which the ensemble asks for `pinned`."""

    pinned = -1

    async def index(self, *, timeout: float) -> list[ModelState]:
        others = [state for state in await super().index(timeout=timeout) if state.name != "classifier"]
        versions = {"10": True, "9": True, "11": False}
        return [*others, *(ModelState("classifier", version, ready) for version, ready in versions.items())]

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        config = await super().config(model, timeout=timeout)
        return replace(
            config, steps=tuple(replace(s, version=self.pinned) for s in config.steps[1:]) + config.steps[:1]
        )


@pytest.mark.parametrize(("pinned", "served"), [(-1, "10"), (9, "9")])
def test_the_version_is_the_one_that_the_ensemble_asks_for(pinned: int, served: str) -> None:
    """The highest that is ready, by number, unless the ensemble names another."""
    triton = Versions()
    triton.pinned = pinned
    for version in ("9", "10", "11"):
        certify(triton, version=version)
        if version == served:
            assert asyncio.run(Discovery(triton, "ensemble_model", 5).check()).ready
        else:
            assert f"version {served} is served" in private_reason(triton)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('"words"', "not an object"),
        ("null", "not an object"),
        ("{}", "lacks its version"),
        ('{"version": 1, "preprocess": {"pixels_sha256": "ab"}}', "lacks its version"),
        ('{"version": "1", "preprocess": "ab"}', "preprocess.pixels_sha256"),
        ('{"version": "1", "preprocess": {"pixels_sha256": null}}', "preprocess.pixels_sha256"),
        ('{"speed": NaN}', "not JSON"),
        ('{"speed": 1e999}', "not JSON"),
        ('{"name": "\\ud800"}', "not JSON"),
        ('{"a":' * 100 + "1" + "}" * 100, "too deep"),
        ("[" * 50_000 + "]" * 50_000, "characters"),
        ("[" * 30_000 + "]" * 30_000, "not JSON"),
        (json.dumps({"version": "1", "padding": " " * 2**16}), "characters"),
    ],
    ids=lambda text: text[:24],
)
def test_a_broken_certificate_is_not_ready(fake: FakeTriton, text: str, words: str) -> None:
    """What could not be checked, or not be shown, is the operator's trouble and no internal error."""
    certify(fake)
    fake.parameters["classifier"]["certificate"] = text
    assert words in private_reason(fake)


class Embedding(FakeTriton):
    """Serves an ensemble that embeds and classifies, from one preprocessor."""

    def __init__(self) -> None:
        super().__init__()
        self.serve("embedding_ensemble", "embed")
        self.parameters["embedder"] = {}

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        config = await super().config(model, timeout=timeout)
        if model == "embedder":
            return replace(config, outputs={"EMBEDDING": (self.dim,)})
        steps = (Step("preprocessor"), Step("classifier"), Step("embedder"))
        return replace(config, steps=steps) if model == "embedding_ensemble" else config


def test_every_engine_of_an_ensemble_is_checked() -> None:
    """That of the task's own output is shown, whatever the order of the steps; a wrong one beside it counts as well."""

    async def work() -> None:
        triton = Embedding()
        certificate = certify(triton)
        own = {**certificate, "precision": "fp32"}
        triton.parameters["embedder"]["certificate"] = json.dumps(own)
        model = await Discovery(triton, "ensemble_model", 5).get("embedding_ensemble")
        assert (model.certificates, model.precision) == ((own, certificate), "fp32")
        assert (model.task.name, model.dim, len(model.labels)) == ("embed", triton.dim, triton.classes)
        certify(triton, version="2")
        discovery = Discovery(triton, "ensemble_model", 5)
        with pytest.raises(ModelNotReady) as error:
            await discovery.get("embedding_ensemble")
        assert "classifier is of version 2" in (error.value.private or "")

    asyncio.run(work())


def test_a_model_of_texts_needs_no_preprocessing(fake: FakeTriton) -> None:
    """Its certificate names none; that of another version is refused all the same."""

    async def ready() -> bool:
        discovery = Discovery(fake, "text_classifier", 5)
        return (await discovery.check()).ready

    fake.serve("text_classifier", "text_classify", certificate=json.dumps({"version": "1"}))
    assert asyncio.run(ready())
    fake.serve("text_classifier", "text_classify", certificate=json.dumps({"version": "2"}))
    assert not asyncio.run(ready())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"task": "divine"}, "is not one that this version serves"),
        ({"moderation": "{"}, "cannot be read"),
        ({"moderation": "{}"}, "or none"),
        ({"moderation": '{"class 99": {"category": "sexual", "threshold": 0.5}}'}, "does not have"),
        ({"moderation": '{"class 1": {"category": "ugly", "threshold": 0.5}}'}, "ugly"),
        ({"moderation": '{"class 1": {"category": "sexual", "threshold": 5}}'}, "not from 0 to 1"),
        ({"moderation": '{"class 1": {"category": "sexual"}}'}, "cannot be read"),
        ({"version_of": "another", "weight": "lots"}, "weight"),
        ({"version_of": "another", "shadow": "2"}, "shadow"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configuration_that_makes_no_sense_is_not_ready(
    fake: FakeTriton, parameters: dict[str, str], words: str
) -> None:
    """The log says which parameter."""
    fake.parameters["ensemble_model"].update(parameters)
    assert words in private_reason(fake)


@pytest.mark.parametrize(
    ("task", "candidate"),
    [
        ("embed", {"dim": 5}),
        ("classify", {"classes": 9}),
        ("classify", {"moderation": '{"class 1 of version 2": {"category": "hate", "threshold": 0.5}}'}),
    ],
    ids=str,
)
def test_a_candidate_that_answers_otherwise_gets_no_weight(
    task: str, candidate: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Features of another length, fewer classes, other categories: who wants that names the version; the log tells."""

    sizes = {name: size for name, size in candidate.items() if name != "moderation"}

    class Different(FakeTriton):
        other = FakeTriton(**sizes)

        async def config(self, model: str, *, timeout: float) -> ModelConfig:
            if model != "main.v2":
                return await super().config(model, timeout=timeout)
            self.other.parameters, self.other.versions = self.parameters, self.versions
            return await self.other.config(model, timeout=timeout)

        async def infer(self, model: str, *arguments: Any, **keywords: Any) -> Answer:
            if model != "main.v2":
                return await super().infer(model, *arguments, **keywords)
            return await self.other.infer(model, *arguments, **keywords)

    async def work() -> None:
        triton = Different()
        triton.serve("main", task)
        moderation = {key: value for key, value in candidate.items() if key == "moderation"}
        triton.serve("main.v2", task, version_of="main", weight="1", **moderation)
        triton.versions["main.v2"] = "2"
        discovery = Discovery(triton, "main", 5)
        await discovery.check()
        assert [(await discovery.get(None)).version for _ in range(5)] == ["1"] * 5
        assert (await discovery.get(None, "2")).served_as == "main.v2"
        assert [weight for _, weight in discovery.shares("main")] == [1, 0]

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert "gets none of its weight" in caplog.text


def test_a_named_version_answers_while_the_main_one_cannot(fake: FakeTriton) -> None:
    """Whoever pinned it does not care."""
    fake.serve("ensemble_model", "divine")
    fake.serve("ensemble_model.v2", "classify", version_of="ensemble_model")
    fake.versions["ensemble_model.v2"] = "2"

    async def work() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        await discovery.check()
        assert (await discovery.get(None, "2")).served_as == "ensemble_model.v2"
        with pytest.raises(ModelNotReady):
            await discovery.get(None)

    asyncio.run(work())


def test_labels_that_were_edited_are_not_served(fake: FakeTriton) -> None:
    """The certificate has the hash of the list; with another list every answer would be well-formed and wrong."""
    labels = "".join(f"class {k}\n" for k in range(fake.classes)).encode()
    certify(fake, labels={"sha256": hashlib.sha256(labels).hexdigest()})
    assert asyncio.run(Discovery(fake, "ensemble_model", 5).check()).ready
    certify(fake, labels={"sha256": hashlib.sha256(labels.swapcase()).hexdigest()})
    assert "certified with the labels" in private_reason(fake)


def test_a_version_can_be_named_and_others_take_their_share(fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that name none a candidate gets its weight; it is no model of its own."""
    fake.serve("ensemble_model.v2", "classify", version_of="ensemble_model", weight="0.25")
    fake.versions["ensemble_model.v2"] = "2"

    async def work() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        await discovery.check()
        assert [model.name for model in discovery.models()] == ["ensemble_model"]
        assert (await discovery.get("ensemble_model", "2")).served_as == "ensemble_model.v2"
        assert (await discovery.get("ensemble_model", "1")).served_as == "ensemble_model"
        with pytest.raises(ModelNotFound):
            await discovery.get("ensemble_model", "3")
        with pytest.raises(ModelNotFound):
            await discovery.get("ensemble_model.v2")
        lots = iter([0.0, 0.2499, 0.25, 0.9999])
        monkeypatch.setattr("random.random", lambda: next(lots))
        assert [(await discovery.get(None)).version for _ in range(4)] == ["2", "2", "1", "1"]

    asyncio.run(work())


def test_a_step_that_is_not_served() -> None:
    """Without it nothing can be said about the ensemble."""

    class Lost(FakeTriton):
        async def config(self, model: str, *, timeout: float) -> ModelConfig:
            config = await super().config(model, timeout=timeout)
            return replace(config, steps=(*config.steps, Step("lost"))) if config.steps else config

    assert "lost is not ready" in private_reason(Lost())


def test_random_weights_do_not_answer_as_the_default(fake: FakeTriton) -> None:
    """Only where the operator allows it; under its own name such a model is served, and says what it is."""
    certify(fake, source={"name": "efficientnet_lite0", "weights": "random"})
    assert "TIDEGATE_ALLOW_RANDOM_WEIGHTS" in private_reason(fake)

    async def work() -> None:
        allowed = Discovery(fake, "ensemble_model", 5, allow_random_weights=True)
        assert (await allowed.check()).ready
        other_default = Discovery(fake, "another", 5)
        assert (await other_default.get("ensemble_model")).weights == "random"

    asyncio.run(work())


def test_a_lasting_reason_is_logged_once(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that is not ready is looked at twice a second; the log says so once, and again when it is another."""

    async def work() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        for version in ("2", "2", "3"):
            certify(fake, version=version)
            await discovery.check(max_age_s=-1)

    with caplog.at_level(logging.WARNING, "gateway.triton.discovery"):
        asyncio.run(work())
    reasons = [vars(r)["reason"] for r in caplog.records if r.message == "A model cannot be used"]
    assert [reason.split()[7] for reason in reasons] == ["2,", "3,"]


def test_a_busy_model_shows_its_new_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is read without an inference: a new certificate is seen, a wrong one refused, under load."""
    monkeypatch.setattr(discovery_module, "REDISCOVER_S", 0)

    async def work() -> None:
        triton = Busy()
        discovery = Discovery(triton, "ensemble_model", 5)
        model = await discovery.get(None)
        triton.busy = True
        certificate = certify(triton)
        discovery.proved(model, "fake")
        assert (await discovery.check(max_age_s=-1)).ready
        assert (await discovery.get(None)).certificate == certificate
        certify(triton, pixels="cd" * 32)
        discovery.proved(model, "fake")
        assert not (await discovery.check(max_age_s=-1)).ready

    asyncio.run(work())
