"""The whole flow of a request: inspect → admit → batch → ask Triton → rows of numbers, in the order sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from gateway.admission import Admission, Claim, Deadline
from gateway.batches import Batch
from gateway.cache import Cache, Items, Row, Rows
from gateway.errors import BadUpstreamResponse, ItemProblem, ModelNotReady
from gateway.inputs import Inputs
from gateway.observe import metrics
from gateway.observe.stages import Stage
from gateway.predictions import NOT_NUMBERS
from gateway.shadow import Shadow
from gateway.triton import Answer, Triton
from gateway.triton.describe import usable_values
from gateway.triton.discovery import Discovery
from gateway.triton.model import Model
from gateway.triton.tensors import EMBEDDING, IMAGE_STATUS

log = logging.getLogger(__name__)

_UNUSABLE = ItemProblem("bad_upstream_response", "The model's answer for this one is not usable.")

EXCHANGE_S = 5.0
"""Seconds for which a model that was ready may be away: Triton 2.51 takes one or two to exchange a version."""
RETRY_S = 0.1


@dataclass(frozen=True)
class Question:
    """What is asked of every item: these outputs, of this model; of one version only, if the caller names it."""

    model: Model
    outputs: tuple[str, ...]
    version: str | None = None


@dataclass(frozen=True)
class Answered:
    """One row for every item, in the order sent, and the version of the model that gave them."""

    version: str
    rows: list[Row]


class Inference:
    """Joins the door (limits, admission) with Triton and its models."""

    def __init__(
        self,
        triton: Triton,
        discovery: Discovery,
        admission: Admission,
        kinds: Mapping[str, Inputs],
        cache: Cache | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        self._triton = triton
        self._discovery = discovery
        self._admission = admission
        self._kinds = kinds
        self._cache = cache
        self._shadow = shadow

    async def answer(
        self, items: Sequence[bytes | ItemProblem], question: Question, deadline: Deadline, caller: str = ""
    ) -> Answered:
        """Rows of all `items`, for a `caller` that gets its share of what there is.

        Raises `Overloaded`, `DeadlineExceeded` or an `UpstreamError`.
        """
        model, kind = question.model, self._kinds[question.model.task.of]
        inspected = [kind.inspect(item) if isinstance(item, bytes) else item for item in items]
        good = [(i, item) for i, item in enumerate(inspected) if isinstance(item, bytes)]

        def ask(items: Items) -> Awaitable[Rows]:
            return self._ask_triton(items, question, deadline, caller)

        rows = await (self._cache.answer(good, question, ask, deadline) if self._cache else ask(good))
        answered = [rows[i] if isinstance(item, bytes) else Row({}, model, item) for i, item in enumerate(inspected)]
        codes = [row.problem.code if row.problem else "ok" for row in answered]
        for code in codes:
            kind.count.labels(model.served_as, code).inc()
        if _UNUSABLE.code in codes and "ok" not in codes:
            raise BadUpstreamResponse("The model's answer is not usable.", private=NOT_NUMBERS)
        # While Triton exchanges a model's version, a request that takes several calls may meet both.
        versions = {row.model.version for row in rows.values()} or {model.version}
        return Answered(",".join(sorted(versions)), answered)

    async def _ask_triton(self, items: Items, question: Question, deadline: Deadline, caller: str) -> Rows:
        """From as many calls as the items' sizes and the model's batch need."""
        model, kind = question.model, self._kinds[question.model.task.of]
        rows: Rows = {}
        async with AsyncExitStack() as held:
            with Stage("wait") as wait:
                wait.note({"tidegate.images": len(items)})
                weight = kind.weight(len(items), sum(len(item) for _, item in items))
                claim = Claim(weight, model.served_as, kind.weight(model.max_batch), caller)
                await held.enter_async_context(self._admission.permit(claim))
            with Stage("pad") as pad:
                batches = kind.batches(items, model.max_batch)
                pad.note({"tidegate.images": len(items), "tidegate.batches": len(batches)})
            for batch, answer in zip(batches, await self._ask_all(batches, question, deadline), strict=True):
                rows.update(zip(batch.indices, answer, strict=True))
        if len(rows) != len(items):
            raise BadUpstreamResponse("An item was left without an answer.")
        return rows

    async def _ask_all(self, batches: Sequence[Batch], question: Question, deadline: Deadline) -> list[list[Row]]:
        if len(batches) == 1:  # the usual case needs no task
            return [await self._ask(batches[0], question, deadline)]
        calls = [asyncio.ensure_future(self._ask(batch, question, deadline)) for batch in batches]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:  # one failed or the caller left: the others are not needed
                call.cancel()

    async def _ask(self, batch: Batch, question: Question, deadline: Deadline) -> list[Row]:
        """One call to Triton: a row for each of the batch's items, in its order."""
        model, kind, count = question.model, self._kinds[question.model.task.of], len(batch.indices)
        wanted = [*question.outputs, *({kind.status} & model.outputs)]
        with _counted(batch, model):
            answer = await self._infer(batch, question, wanted, deadline)
        try:
            outputs = {name: answer.outputs[name] for name in wanted}
        except KeyError as missing:
            raise BadUpstreamResponse("The model's answer lacks an output.", private=str(missing)) from missing
        for name, array in outputs.items():
            if len(array) != count:
                raise BadUpstreamResponse(
                    "The model's answer does not have the expected shape.", private=f"{name} {list(array.shape)}"
                )
        model = await self._discovery.of_version(model, answer.model_version, answer.endpoint)
        if question.version not in (None, model.version):
            raise ModelNotReady("The version is not served any more.", private=f"{model.version} answered")
        if EMBEDDING in question.outputs and model.dim != question.model.dim:
            raise ModelNotReady("The model was exchanged for one of another length.", private=f"{model.dim} answered")
        verdicts = kind.verdicts(outputs[kind.status], model) if kind.status in outputs else [None] * count
        usable = np.logical_and.reduce([usable_values(model, name, outputs[name], count) for name in question.outputs])
        kept = {name: array for name, array in outputs.items() if name != IMAGE_STATUS}
        rows = []
        for i, fine in enumerate(usable.tolist()):
            problem = verdicts[i] or (None if fine else _UNUSABLE)
            rows.append(Row({} if problem else {name: array[i] for name, array in kept.items()}, model, problem))
        broken = sum(row.problem is _UNUSABLE for row in rows)
        if broken:
            extra = {"model": model.served_as, "items": broken, "reason": NOT_NUMBERS}
            log.warning("A model answered with values that are not usable", extra=extra)
        else:
            self._discovery.proved(model, answer.endpoint)
        if self._shadow is not None:
            self._shadow.repeat(batch, question.outputs, rows, kind.weight(count, batch.payload_bytes))
        return rows

    async def _infer(self, batch: Batch, question: Question, wanted: Sequence[str], deadline: Deadline) -> Answer:
        """Asks again while Triton exchanges the model's version, for which it is away for a moment."""
        give_up = time.monotonic() + EXCHANGE_S
        tensors = batch.tensors()
        while True:
            try:
                return await self._triton.infer(question.model.served_as, tensors, wanted, timeout=deadline.remaining())
            except ModelNotReady:
                if time.monotonic() > give_up or deadline.remaining() < 2 * RETRY_S:
                    raise
                await asyncio.sleep(RETRY_S)


@contextmanager
def _counted(batch: Batch, model: Model) -> Iterator[None]:
    """Counts a call to Triton, and times it whether or not it succeeds."""
    items, name, payload = len(batch.indices), model.served_as, batch.payload_bytes
    metrics.BATCH_IMAGES.labels(name).observe(items)
    metrics.PAYLOAD_BYTES.inc(payload)
    metrics.PADDING_BYTES.inc(batch.padding_bytes)
    call = Stage("infer", outgoing=True)
    try:
        with call:
            call.note({"tidegate.model": name, "tidegate.images": items, "tidegate.bytes": payload})
            yield
    finally:
        metrics.INFERENCE_SECONDS.labels(name).observe(call.seconds)
