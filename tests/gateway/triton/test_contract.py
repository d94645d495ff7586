"""One contract for every Triton: the fake answers as the real one does, and so does a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pytest

from gateway.errors import ModelNotReady
from gateway.triton import Step, Triton
from gateway.triton.client import TritonClient
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.model import CLASSIFY
from gateway.triton.pool import Pool
from gateway.triton.tensors import CLASSIFICATION, IMAGE_STATUS, image_tensors
from tests.pictures import encode, noise

T = TypeVar("T")
Ask = Callable[[Callable[[Triton], Awaitable[T]]], T]
FILES = [encode(noise(8, 8, seed)) for seed in range(3)]


@pytest.fixture(params=["fake", "real", "pool"])
def ask(request: pytest.FixtureRequest) -> Ask[object]:
    """Runs a coroutine against one of them."""
    url: str | None = None if request.param == "fake" else request.getfixturevalue("triton").url

    def run(work: Callable[[Triton], Awaitable[T]]) -> T:
        async def with_client() -> T:
            client: Triton = FakeTriton() if url is None else TritonClient(url)
            if url is not None and request.param == "pool":
                client = Pool([client, TritonClient(url.replace("127.0.0.1", "localhost"))])
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(with_client())

    return run


def padded(files: list[bytes]) -> list:  # type: ignore[type-arg]
    longest = max(map(len, files))
    data = b"".join(file.ljust(longest, b"\0") for file in files)
    return list(image_tensors(len(files), longest, data, np.array([[len(f)] for f in files])))


def test_rows_in_order_and_independent(ask: Ask) -> None:  # type: ignore[type-arg]
    """Each row's probabilities are those of its file alone; the statuses say that all is well."""

    async def work(triton: Triton) -> None:
        together = await triton.infer("ensemble_model", padded(FILES), [CLASSIFICATION, IMAGE_STATUS], timeout=20)
        assert together.model_version.isdecimal()
        assert together.outputs[IMAGE_STATUS].tolist() == [[0]] * len(FILES)
        assert together.outputs[CLASSIFICATION].dtype == np.float32
        for row, file in zip(together.outputs[CLASSIFICATION], FILES, strict=True):
            alone = await triton.infer("ensemble_model", padded([file]), [CLASSIFICATION], timeout=20)
            np.testing.assert_allclose(alone.outputs[CLASSIFICATION][0], row, atol=1e-3)
            assert abs(row.sum() - 1) < 1e-3

    ask(work)


def test_discovery(ask: Ask) -> None:  # type: ignore[type-arg]
    """The ensemble is found with its task, its batch limit and a label for every class; its steps are not."""

    async def work(triton: Triton) -> None:
        discovery = Discovery(triton, "ensemble_model", 5)
        assert (await discovery.check()).ready
        model = await discovery.get("ensemble_model")
        config = await triton.config("ensemble_model", timeout=5)
        assert (model.task, model.max_batch) == (CLASSIFY, config.max_batch)
        assert len(set(model.labels)) == config.outputs[CLASSIFICATION][0]
        assert "preprocessor" not in [m.name for m in discovery.models()]

    ask(work)


def test_an_ensemble_names_its_steps(ask: Ask) -> None:  # type: ignore[type-arg]
    """In order, each a model of the same index with a configuration of its own; a step has none."""

    async def work(triton: Triton) -> None:
        config = await triton.config("ensemble_model", timeout=5)
        # An ensemble that the builder wrote pins its steps to the number that it has itself.
        pinned = {step.version for step in config.steps}
        assert len(pinned) == 1
        assert config.steps == tuple(Step(name, *pinned) for name in ("preprocessor", "classifier"))
        ready = {state.name for state in await triton.index(timeout=5) if state.ready}
        assert {"ensemble_model", "preprocessor", "classifier"} <= ready
        preprocessor, classifier = [await triton.config(step.model, timeout=5) for step in config.steps]
        assert (preprocessor.steps, classifier.steps) == ((), ())
        assert preprocessor.parameters["preprocess"].startswith("classifier/")
        assert CLASSIFICATION in classifier.outputs
        assert CLASSIFICATION not in preprocessor.outputs

    ask(work)


def test_labels_belong_to_their_classes(ask: Ask) -> None:  # type: ignore[type-arg]
    """Triton's classification extension gives `value:index:label`, best first, as the probabilities say."""

    async def work(triton: Triton) -> None:
        plain = await triton.infer("ensemble_model", padded(FILES[:1]), [CLASSIFICATION], timeout=20)
        strings = await triton.infer("ensemble_model", padded(FILES[:1]), [CLASSIFICATION], timeout=20, top_classes=3)
        best = np.argsort(-plain.outputs[CLASSIFICATION][0])[:3].tolist()
        assert [int(s.split(b":")[1]) for s in strings.outputs[CLASSIFICATION].ravel()] == best

    ask(work)


def test_a_default_model_that_is_not_served(ask: Ask) -> None:  # type: ignore[type-arg]
    """Readiness says so, and asking for it is `ModelNotReady`: the operator's trouble, not the caller's."""

    async def work(triton: Triton) -> None:
        discovery = Discovery(triton, "no_such_model", 5)
        assert not (await discovery.check()).ready
        with pytest.raises(ModelNotReady):
            await discovery.get(None)

    ask(work)
