"""What is learnt of several Tritons that do not agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client import REGISTRY

from gateway.errors import ModelNotFound, UpstreamUnavailable
from gateway.settings import Settings
from gateway.triton import ModelState
from gateway.triton.discovery import RETRY_INTERVAL_S, Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.pool import Pool
from gateway.triton.tensors import CLASSIFICATION
from tests.gateway.triton.test_contract import padded
from tests.gateway.triton.test_discovery import Two, certify
from tests.grpc_triton import grpc_triton
from tests.pictures import encode, noise
from tests.servers import metric, running_gateway, wait_for

PICTURES = [encode(noise(8, 8, seed)) for seed in range(20)]


@pytest.fixture
def pair() -> tuple[Two, Two]:
    """Two of two models each."""
    pair = Two(), Two()
    pair[0].endpoint, pair[1].endpoint = "a:1", "b:1"
    return pair


def ready(endpoint: str) -> float | None:
    return REGISTRY.get_sample_value("tidegate_triton_ready", {"endpoint": endpoint})


async def watched(discovery: Discovery, seconds: float) -> None:
    watch = asyncio.create_task(discovery.watch())
    await asyncio.sleep(seconds)
    watch.cancel()


def test_one_that_answers_is_enough(pair: tuple[Two, Two]) -> None:
    """The gateway is ready, each endpoint is shown as it is, and both are when both are."""
    pair[0].failure = UpstreamUnavailable("gone")

    async def work() -> None:
        discovery = Discovery(Pool(pair), "ensemble_model", 5)
        await watched(discovery, 0.1)
        assert (await discovery.check()).ready
        assert (ready("a:1"), ready("b:1")) == (0, 1)
        assert (await discovery.get(None)).name == "ensemble_model"
        pair[0].failure = None
        await watched(discovery, 0.1)
        assert (ready("a:1"), ready("b:1")) == (1, 1)
        for each in pair:
            each.failure = UpstreamUnavailable("gone")
        assert not (await discovery.check(max_age_s=0)).ready

    asyncio.run(work())


def test_a_model_in_one_place_is_a_model(pair: tuple[Two, Two]) -> None:
    """What one Triton could not load, and another did, is served; what none did is named as unavailable."""
    pair[0].other = ModelState("other", "1", False, "failed to load")

    async def work() -> None:
        discovery = Discovery(Pool(pair), "ensemble_model", 5)
        await watched(discovery, 0.1)
        assert [model.name for model in discovery.models()] == ["ensemble_model"]
        pair[1].parameters["other"] = {"task": "classify"}
        await watched(discovery := Discovery(Pool(pair), "ensemble_model", 5), 0.1)
        assert [model.name for model in discovery.models()] == ["ensemble_model", "other"]
        assert discovery.broken() == []
        assert (await discovery.get("other")).name == "other"
        with pytest.raises(ModelNotFound):
            await discovery.get("third")
        del pair[1].parameters["other"]
        pair[1].other = pair[0].other
        await watched(discovery := Discovery(Pool(pair), "ensemble_model", 5), 0.1)
        assert discovery.broken() == ["other"]

    asyncio.run(work())


def test_a_failed_call_brings_a_probe(pair: tuple[Two, Two]) -> None:
    """A Triton that lost one connection is back well before the next regular probe."""

    async def work() -> None:
        pool = Pool(pair)
        discovery = Discovery(pool, "ensemble_model", 60)
        watch = asyncio.create_task(discovery.watch())
        await asyncio.sleep(0.1)
        pool.members[0].away = True
        pool.members[0].doubt.set()
        await asyncio.sleep(2 * RETRY_INTERVAL_S)
        assert not pool.members[0].away
        watch.cancel()

    asyncio.run(work())


def test_a_failed_call_outweighs_an_earlier_answer(pair: tuple[Two, Two]) -> None:
    """A real answer is as good as a probe for a second, and not when a later call has found nobody."""

    async def work() -> None:
        pool = Pool(pair)
        discovery = Discovery(pool, "ensemble_model", 5)
        await watched(discovery, 0.1)
        discovery.proved(await discovery.get(None), "a:1")
        pair[0].failure = UpstreamUnavailable("gone")
        await pool.infer("ensemble_model", padded(PICTURES[:1]), [CLASSIFICATION], timeout=5)
        await watched(discovery, 0.1)
        assert (ready("a:1"), ready("b:1")) == (0, 1)

    asyncio.run(work())


def test_the_certificate_is_that_of_the_triton_that_shows_it(pair: tuple[Two, Two]) -> None:
    """Of two certified versions each is seen with its own document: no look at one Triton reads from the other."""
    for each, version in zip(pair, ("1", "2"), strict=True):
        certify(each, version=version)
        each.version = version

    async def work() -> None:
        discovery = Discovery(Pool(pair), "ensemble_model", 5)
        await watched(discovery, 0.1)
        model = await discovery.get(None)
        for version, endpoint in (("1", "a:1"), ("2", "b:1")):
            known = await discovery.of_version(model, version, endpoint)
            assert known.certificate is not None
            assert (known.version, known.certificate["version"]) == (version, version)

    asyncio.run(work())


def test_labels_come_from_where_the_answer_came_from(pair: tuple[Two, Two], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines were both published as version 1, by mistake: every answer has the labels of its own."""
    monkeypatch.setattr(pair[1], "_label", lambda index, version: f"other {index}")

    async def work() -> None:
        discovery = Discovery(Pool(pair), "ensemble_model", 5)
        model = await discovery.get(None)
        assert model.labels[0] == "class 0"
        assert (await discovery.of_version(model, "1", "a:1")).labels[0] == "class 0"
        assert (await discovery.of_version(model, "1", "b:1")).labels[0] == "other 0"

    asyncio.run(work())


@dataclass
class Stack:
    """Two Tritons over gRPC, and a gateway in front of both."""

    tritons: list[FakeTriton]
    client: httpx.Client


@pytest.fixture
def stack() -> Iterator[Stack]:
    with two_tritons() as stack:
        yield stack


@contextmanager
def two_tritons() -> Iterator[Stack]:
    tritons = [FakeTriton(), FakeTriton()]
    with ExitStack() as held:
        urls = [held.enter_context(grpc_triton(each)).url for each in tritons]
        client = held.enter_context(running_gateway(Settings(triton_url=",".join(urls), probe_interval_s=60)))
        wait_for(client, "/readyz")
        yield Stack(tritons, client)


def test_a_rolling_update_of_the_model_mixes_no_labels(stack: Stack) -> None:
    """One Triton has version 2 and the other 1 for a while: every label is of the version that the answer names."""
    versions = Counter[str]()
    for a, b in (("1", "1"), ("2", "1"), ("2", "2"), ("2", "3"), ("3", "3")):
        stack.tritons[0].version, stack.tritons[1].version = a, b
        for i in range(40):
            picture = PICTURES[i % len(PICTURES)]
            answer = stack.client.post("/v1/classify?top_k=10", content=picture)
            assert answer.status_code == 200, answer.text
            version = answer.json()["model"]["version"]
            versions[version] += 1
            expected = stack.tritons[0].probabilities(picture)
            for prediction in answer.json()["results"][0]["predictions"]:
                k = prediction["class_id"]
                assert prediction["label"] == (f"class {k}" if version == "1" else f"class {k} of version {version}")
                assert prediction["probability"] == pytest.approx(float(expected[k]))
    assert versions == {"1": 60, "2": 80, "3": 60}


def test_two_versions_side_by_side_cost_no_looking_up(stack: Stack) -> None:
    """Each version is learnt once from the Triton that has it, not anew with every answer."""
    stack.tritons[1].version = "2"
    for _ in range(4):
        stack.client.post("/v1/classify", content=PICTURES[0])
    for each in stack.tritons:
        each.asked.clear()
    for _ in range(20):
        assert stack.client.post("/v1/classify", content=PICTURES[0]).status_code == 200
    assert [len(each.asked) for each in stack.tritons] == [10, 10]


def test_retries_are_counted(stack: Stack) -> None:
    """A Triton that answers nothing costs no caller an answer, and shows in the metrics."""
    before = metric(stack.client, "tidegate_triton_retries_total")
    stack.tritons[0].failure = UpstreamUnavailable("gone")
    for _ in range(20):
        assert stack.client.post("/v1/classify", content=PICTURES[0]).status_code == 200
    assert metric(stack.client, "tidegate_triton_retries_total") - before == 1
