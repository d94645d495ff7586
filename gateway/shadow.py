"""Repeats a share of what a model has answered on its candidates, and counts whether they agree. Nobody waits."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.admission import Admission, Claim
from gateway.batches import Batch
from gateway.cache import Row
from gateway.errors import Overloaded, TidegateError
from gateway.observe import metrics
from gateway.triton import Answer, Triton
from gateway.triton.describe import usable_values
from gateway.triton.discovery import Discovery
from gateway.triton.model import Model
from gateway.triton.tensors import CLASSIFICATION

AT_ONCE = 4
"""Comparisons under way in one worker; each holds its batch in memory. What comes meanwhile is skipped, and counted."""
SAME_DIRECTION = 0.99
"""Cosine of two embeddings that agree."""


class Shadow:
    """Asks candidates what the main version was asked, only while at least half of the gate's places are free."""

    def __init__(self, triton: Triton, discovery: Discovery, admission: Admission, timeout_s: float) -> None:
        self._triton = triton
        self._discovery = discovery
        self._admission = admission
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def repeat(self, batch: Batch, outputs: Sequence[str], rows: Sequence[Row], weight: int) -> None:
        """Starts the comparisons that chance picks, and returns at once.

        `rows` are what the model answered to `outputs`; `weight` is that of the batch for admission, in images.
        """
        model = rows[0].model
        if model.traffic is not None:
            return
        for candidate in self._discovery.candidates(model):
            if not candidate.outputs.issuperset(outputs):
                continue
            assert candidate.traffic is not None
            if random.random() >= candidate.traffic.shadow:  # noqa: S311  # of traffic, not of secrets
                continue
            if len(self._tasks) >= AT_ONCE or not self._admission.is_idle(weight):
                self._count(candidate, ["skipped"] * len(rows))
                continue
            # Outside of the request's context: its stages have ended.
            comparing = self._compare(batch, outputs, rows, candidate, weight)
            task = contextvars.Context().run(asyncio.ensure_future, comparing)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def rest(self) -> None:
        """Until nothing is under way."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Gives up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(
        self, batch: Batch, outputs: Sequence[str], rows: Sequence[Row], candidate: Model, weight: int
    ) -> None:
        outcomes = ["failed"] * len(rows)
        claim = Claim(weight, candidate.served_as, candidate.max_batch, "shadow")
        try:
            with self._admission.hold() as grow:
                grow(batch.payload_bytes)
                async with self._admission.permit(claim):
                    name = candidate.served_as
                    answer = await self._triton.infer(name, batch.tensors(), outputs, timeout=self._timeout_s)
            if answer.model_version == candidate.version:
                outcomes = _outcomes(outputs, rows, answer, candidate)
        except Overloaded:
            outcomes = ["skipped"] * len(rows)
        except (TidegateError, KeyError):
            pass
        finally:
            self._count(candidate, outcomes)

    def _count(self, candidate: Model, outcomes: Sequence[str]) -> None:
        for outcome in outcomes:
            metrics.SHADOW.labels(candidate.name, outcome).inc()


def _outcomes(outputs: Sequence[str], rows: Sequence[Row], answer: Answer, candidate: Model) -> list[str]:
    theirs = {output: answer.outputs[output] for output in outputs}
    usable = [usable_values(candidate, output, theirs[output], len(rows)) for output in outputs]
    outcomes = []
    for i, row in enumerate(rows):
        if row.problem is not None:  # both were shown a black picture: there is nothing to compare
            outcomes.append("skipped")
        elif not all(fine[i] for fine in usable):
            outcomes.append("failed")
        else:
            same = all(_agree(output, row, theirs[output][i], candidate) for output in outputs)
            outcomes.append("agree" if same else "differ")
    return outcomes


def _agree(output: str, row: Row, theirs: NDArray[Any], candidate: Model) -> bool:
    """The same best class, by its name; or embeddings that point the same way."""
    ours = row.values[output]
    if output == CLASSIFICATION:
        return row.model.labels[int(ours.argmax())] == candidate.labels[int(theirs.argmax())]
    if ours.shape != theirs.shape:
        return False
    lengths = float(np.linalg.norm(ours)) * float(np.linalg.norm(theirs))
    return float(ours @ theirs) >= SAME_DIRECTION * lengths
