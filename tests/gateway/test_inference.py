"""The flow of a request, on the fake Triton."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from gateway.admission import Admission, Deadline
from gateway.errors import (
    BadUpstreamResponse,
    DeadlineExceeded,
    ItemProblem,
    ModelNotReady,
    Overloaded,
    UpstreamUnavailable,
)
from gateway.images import ImageLimits
from gateway.inference import Answered, Inference, Question
from gateway.inputs import kinds
from gateway.triton.discovery import Discovery
from gateway.triton.fake import FakeTriton
from gateway.triton.tensors import CLASSIFICATION
from tests.pictures import encode, noise

T = TypeVar("T")
PICTURES = [encode(noise(8, 8, seed)) for seed in range(20)]
KINDS = kinds(ImageLimits(10**6, 10**6), 1000)
CLASSES = (CLASSIFICATION,)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def classify(
    triton: FakeTriton, files: list[bytes | ItemProblem], seconds: float = 5, max_images: int = 100
) -> Answered:
    discovery = Discovery(triton, "ensemble_model", 5)
    inference = Inference(triton, discovery, Admission(max_images, 10**9, 60), KINDS)
    model = await discovery.get(None)
    triton.asked.clear()
    return await inference.answer(files, Question(model, CLASSES), Deadline.after(seconds))


@pytest.mark.parametrize("count", [1, 8, 9, 17])
def test_every_file_has_its_own_answer_in_order(fake: FakeTriton, count: int) -> None:
    """N files, more than one batch, one outcome each, equal to the answer alone."""
    answer = run(classify(fake, list(PICTURES[:count])))
    assert len(answer.rows) == count
    assert sum(rows for rows, _ in fake.asked) == count
    assert max(rows for rows, _ in fake.asked) <= 8
    for file, row in zip(PICTURES, answer.rows, strict=False):
        assert row.problem is None
        assert row.values[CLASSIFICATION].tolist() == fake.probabilities(file).tolist()


def test_a_bad_file_costs_one_item(fake: FakeTriton) -> None:
    """Problems stay where they are; Triton never sees the bad file."""
    problem = ItemProblem("invalid_base64", "x")
    answer = run(classify(fake, [PICTURES[0], b"junk", PICTURES[1], b"", problem]))
    codes = [row.problem.code if row.problem else "ok" for row in answer.rows]
    assert codes == ["ok", "unsupported_image", "ok", "empty_image", "invalid_base64"]
    assert sum(rows for rows, _ in fake.asked) == 2


def test_no_good_file_asks_nobody(fake: FakeTriton) -> None:
    """Triton is not asked for nothing."""
    answer = run(classify(fake, [b"junk"]))
    assert len(answer.rows) == 1
    assert fake.asked == []


def test_deadline(fake: FakeTriton) -> None:
    """What cannot be done in time raises, at the time."""

    async def slow() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        model = await discovery.get(None)
        fake.delay = 60
        inference = Inference(fake, discovery, Admission(10, 10**9, 60), KINDS)
        await inference.answer([PICTURES[0]], Question(model, CLASSES), Deadline.after(0.05))

    with pytest.raises(DeadlineExceeded):
        run(slow())


def test_nan_is_not_a_label(fake: FakeTriton) -> None:
    """A model that answers NaN is an error of the upstream."""

    async def broken() -> None:
        discovery = Discovery(fake, "ensemble_model", 5)
        model = await discovery.get(None)
        fake.nan = True
        inference = Inference(fake, discovery, Admission(10, 10**9, 60), KINDS)
        await inference.answer([PICTURES[0]], Question(model, CLASSES), Deadline.after(5))

    with pytest.raises(BadUpstreamResponse):
        run(broken())


def test_overload_is_refused_before_triton_is_asked(fake: FakeTriton) -> None:
    """Work beyond the budget gets no place in Triton's queue."""

    async def crowd() -> list[Answered | BaseException]:
        discovery = Discovery(fake, "ensemble_model", 5)
        model = await discovery.get(None)
        fake.delay = 0.5
        inference = Inference(fake, discovery, Admission(2, 10**9, 60), KINDS)
        calls = [inference.answer([file], Question(model, CLASSES), Deadline.after(5)) for file in PICTURES[:5]]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = run(crowd())
    assert sum(isinstance(a, Answered) for a in answers) == 2
    assert sum(isinstance(a, Overloaded) for a in answers) == 3


def test_triton_gone(fake: FakeTriton) -> None:
    """A Triton that cannot be reached is said to be so."""
    fake.failure = UpstreamUnavailable("gone")
    with pytest.raises(UpstreamUnavailable):
        run(classify(fake, [PICTURES[0]]))


def test_labels_are_those_of_the_version_that_answered(fake: FakeTriton) -> None:
    """Triton has another version since the labels were learnt: they are learnt again before an answer is named."""

    async def ask() -> Answered:
        discovery = Discovery(fake, "ensemble_model", 5)
        inference = Inference(fake, discovery, Admission(100, 10**9, 60), KINDS)
        model = await discovery.get(None)
        fake.version = "2"
        return await inference.answer(list(PICTURES[:9]), Question(model, CLASSES), Deadline.after(5))

    answer = run(ask())
    assert answer.version == "2"
    for row in answer.rows:
        assert row.model.labels == tuple(f"class {k} of version 2" for k in range(10))


def test_a_version_that_is_gone_again_names_nothing(fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a version whose labels cannot be had is no answer: 503, and never another version's labels."""

    async def ask() -> Answered:
        discovery = Discovery(fake, "ensemble_model", 5)
        inference = Inference(fake, discovery, Admission(100, 10**9, 60), KINDS)
        model = await discovery.get(None)
        infer = fake.infer

        async def of_another(*arguments: Any, **keywords: Any) -> Any:
            answer = await infer(*arguments, **keywords)
            return answer if keywords.get("top_classes") else replace(answer, model_version="7")

        monkeypatch.setattr(fake, "infer", of_another)
        return await inference.answer(list(PICTURES[:1]), Question(model, CLASSES), Deadline.after(5))

    with pytest.raises(ModelNotReady):
        run(ask())
