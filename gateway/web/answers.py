"""An answer's document: who answered, one result for each item in the order sent, and how long it took."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping

import numpy as np
from fastapi import Request, Response
from numpy.typing import NDArray
from pydantic_core import to_json

from gateway.cache import Row
from gateway.errors import ItemProblem, NothingUsable, NoUsableImage, NoUsableText
from gateway.inference import Answered
from gateway.observe.logging import request_id
from gateway.observe.stages import Stage, Timeline
from gateway.predictions import unit
from gateway.triton.model import Model
from gateway.web.body import Upload

Show = Callable[[Row], dict[str, object] | ItemProblem]
"""What a result has beside its place and status."""


def of_images(
    request: Request, upload: Upload, model: Model, answered: Answered, show: Show, **members: object
) -> Response:
    """Raises `NoUsableImage` when there is no good one."""
    heads: list[dict[str, object]] = [{"index": i, "filename": file.filename} for i, file in enumerate(upload.files)]
    none = NoUsableImage(f"None of the images could be used; results says why.{upload.hint}", [])
    return _answer(request, heads, model, answered, show, none, members)


def of_texts(request: Request, model: Model, answered: Answered, show: Show) -> Response:
    """Raises `NoUsableText` when there is no good one."""
    heads: list[dict[str, object]] = [{"index": i} for i in range(len(answered.rows))]
    none = NoUsableText("None of the texts could be used; results says why.", [])
    return _answer(request, heads, model, answered, show, none, {})


def _answer(
    request: Request,
    heads: list[dict[str, object]],
    model: Model,
    answered: Answered,
    show: Show,
    none: NothingUsable,
    members: Mapping[str, object],
) -> Response:
    timeline: Timeline = request.scope["state"]["timeline"]
    with Stage("encode"):
        good = 0
        for head, row in zip(heads, answered.rows, strict=True):
            shown = row.problem or show(row)
            if isinstance(shown, ItemProblem):
                head.update(status="error", error=shown)
            else:
                head.update(status="ok", **shown)
                good += 1
        if not good:
            none.results = heads
            raise none
        body = {
            "request_id": request_id.get(),
            "model": {"name": model.name, "version": answered.version},
            **members,
            "results": heads,
            "timings_ms": {name: round(seconds * 1000, 3) for name, seconds in timeline.timings().items()},
        }
        return Response(to_json(body), media_type="application/json")


def embedding(values: NDArray[np.float32], *, normalize: bool, encoding: str) -> list[float] | str | ItemProblem:
    """One row FP32 `[dim]` as it is sent: numbers, or base64 of FP32, little-endian."""
    row = unit(values) if normalize else values
    if isinstance(row, ItemProblem):
        return row
    if encoding == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    numbers: list[float] = row.tolist()
    return numbers
