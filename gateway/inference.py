"""The whole flow of a request: inspect → admit → batch → ask Triton → predictions, in the order sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from gateway.admission import Admission, Claim, Deadline
from gateway.batches import Batch, make_batches
from gateway.cache import Cache, Files, Row, Rows
from gateway.errors import BadUpstreamResponse, ImageProblem, ModelNotReady
from gateway.images import EncodedImage, ImageLimits, inspect
from gateway.observe import metrics
from gateway.observe.stages import Stage
from gateway.predictions import NOT_NUMBERS, Prediction, top_k, usable_rows
from gateway.triton import Answer, Tensor, Triton
from gateway.triton.discovery import CLASSIFICATION, IMAGE_STATUS, Discovery, Model, image_tensors

log = logging.getLogger(__name__)

Outcome = list[Prediction] | ImageProblem

# The preprocessor's verdicts (IMAGE_STATUS), documented beside it in model_repository/README.md.
_STATUS: dict[int, ImageProblem] = {
    1: ImageProblem("empty_image", "The file is empty."),
    2: ImageProblem("unsupported_image", "The file is not a picture of a kind that is taken."),
    3: ImageProblem("corrupt_image", "The picture is damaged: it cannot be decoded to its end."),
    4: ImageProblem("image_too_large", "The picture has more pixels than are allowed."),
}
_NO_PROBABILITIES = ImageProblem("bad_upstream_response", "The model's answer for this picture is not usable.")

EXCHANGE_S = 5.0
"""Seconds for which a model that was ready may be away: Triton 2.51 takes one or two to exchange a version."""
RETRY_S = 0.1


@dataclass(frozen=True)
class Question:
    """What a caller asks of every image: how many classes, and how probable they must be at least."""

    top_k: int | None = None
    threshold: float = 0.0


@dataclass(frozen=True)
class Classified:
    """One outcome for every file, in the order sent, and the version of the model that gave them."""

    version: str
    outcomes: list[Outcome]


class Inference:
    """Joins the door (limits, admission) with Triton and its models."""

    def __init__(
        self,
        triton: Triton,
        discovery: Discovery,
        admission: Admission,
        limits: ImageLimits,
        cache: Cache | None = None,
    ) -> None:
        self._triton = triton
        self._discovery = discovery
        self._admission = admission
        self._limits = limits
        self._cache = cache

    async def classify(
        self,
        files: Sequence[bytes | ImageProblem],
        model: Model,
        question: Question,
        deadline: Deadline,
        caller: str = "",
    ) -> Classified:
        """Outcomes of all `files`, for a `caller` that gets its share of what there is.

        Raises `Overloaded`, `DeadlineExceeded` or an `UpstreamError`.
        """
        inspected = [inspect(file, self._limits) if isinstance(file, bytes) else file for file in files]
        good = [(i, image.data) for i, image in enumerate(inspected) if isinstance(image, EncodedImage)]

        def ask(files: Files) -> Awaitable[Rows]:
            return self._ask_triton(files, model, deadline, caller)

        rows = await (self._cache.answer(good, model, ask, deadline) if self._cache else ask(good))
        outcomes = [
            image if isinstance(image, ImageProblem) else _outcome(rows[i], question)
            for i, image in enumerate(inspected)
        ]
        codes = [outcome.code if isinstance(outcome, ImageProblem) else "ok" for outcome in outcomes]
        for code in codes:
            metrics.IMAGES.labels(model.name, code).inc()
        if _NO_PROBABILITIES.code in codes and "ok" not in codes:
            raise BadUpstreamResponse("The model's answer is not usable.", private=NOT_NUMBERS)
        # While Triton exchanges a model's version, a request that takes several calls may meet both.
        versions = {row.model.version for row in rows.values()} or {model.version}
        return Classified(",".join(sorted(versions)), outcomes)

    async def _ask_triton(self, files: Files, model: Model, deadline: Deadline, caller: str) -> Rows:
        """From as many calls as the files' sizes and the model's batch need."""
        rows: Rows = {}
        async with AsyncExitStack() as held:
            with Stage("wait") as wait:
                wait.note({"tidegate.images": len(files)})
                claim = Claim(len(files), model.name, model.max_batch, caller)
                await held.enter_async_context(self._admission.permit(claim))
            with Stage("pad") as pad:
                batches = make_batches(files, model.max_batch)
                pad.note({"tidegate.images": len(files), "tidegate.batches": len(batches)})
            for batch, answer in zip(batches, await self._ask_all(batches, model, deadline), strict=True):
                rows.update(zip(batch.indices, answer, strict=True))
        if len(rows) != len(files):
            raise BadUpstreamResponse("An image was left without an answer.")
        return rows

    async def _ask_all(self, batches: list[Batch], model: Model, deadline: Deadline) -> list[list[Row]]:
        if len(batches) == 1:  # the usual case needs no task
            return [await self._ask(batches[0], model, deadline)]
        calls = [asyncio.ensure_future(self._ask(batch, model, deadline)) for batch in batches]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:  # one failed or the caller left: the others are not needed
                call.cancel()

    async def _ask(self, batch: Batch, model: Model, deadline: Deadline) -> list[Row]:
        """One call to Triton: a row for each of the batch's images, in its order."""
        inputs = image_tensors(len(batch.indices), batch.row_bytes, batch.data, batch.lengths)
        with _counted(batch, model):
            answer = await self._infer(model, inputs, deadline)
        try:
            statuses = answer.outputs[IMAGE_STATUS].ravel().tolist()
            probabilities = answer.outputs[CLASSIFICATION]
        except KeyError as missing:
            raise BadUpstreamResponse("The model's answer lacks an output.", private=str(missing)) from missing
        if len(statuses) != len(batch.indices):
            raise BadUpstreamResponse("The model's answer does not have the expected shape.", private=str(statuses))
        model = await self._discovery.of_version(model, answer.model_version, answer.endpoint)
        usable = usable_rows(probabilities, len(batch.indices), len(model.labels)).tolist()
        rows = [
            Row(_problem(status) if status else row if fine else _NO_PROBABILITIES, model)
            for status, row, fine in zip(statuses, probabilities, usable, strict=True)
        ]
        broken = sum(row.value is _NO_PROBABILITIES for row in rows)
        if broken:
            extra = {"model": model.name, "images": broken, "reason": NOT_NUMBERS}
            log.warning("A model answered with values that are no probabilities", extra=extra)
        else:
            self._discovery.proved(model, answer.endpoint)
        return rows

    async def _infer(self, model: Model, inputs: list[Tensor], deadline: Deadline) -> Answer:
        """Asks again while Triton exchanges the model's version, for which it is away for a moment."""
        give_up = time.monotonic() + EXCHANGE_S
        while True:
            try:
                return await self._triton.infer(
                    model.name, inputs, [CLASSIFICATION, IMAGE_STATUS], timeout=deadline.remaining()
                )
            except ModelNotReady:
                if time.monotonic() > give_up or deadline.remaining() < 2 * RETRY_S:
                    raise
                await asyncio.sleep(RETRY_S)


def _problem(status: int) -> ImageProblem:
    if status not in _STATUS:
        raise BadUpstreamResponse("The preprocessor gave an unknown status.", private=f"IMAGE_STATUS {status}")
    return _STATUS[status]


def _outcome(row: Row, question: Question) -> Outcome:
    if isinstance(row.value, ImageProblem):
        return row.value
    labels = row.model.labels
    k = min(5, len(labels)) if question.top_k is None else question.top_k
    return top_k(row.value, labels, k, question.threshold)


@contextmanager
def _counted(batch: Batch, model: Model) -> Iterator[None]:
    """Counts a call to Triton, and times it whether or not it succeeds."""
    images, padding = len(batch.indices), batch.padding_bytes
    metrics.BATCH_IMAGES.labels(model.name).observe(images)
    metrics.PAYLOAD_BYTES.inc(len(batch.data) - padding)
    metrics.PADDING_BYTES.inc(padding)
    call = Stage("infer", outgoing=True)
    try:
        with call:
            call.note({"tidegate.model": model.name, "tidegate.images": images, "tidegate.bytes": len(batch.data)})
            yield
    finally:
        metrics.INFERENCE_SECONDS.labels(model.name).observe(call.seconds)
