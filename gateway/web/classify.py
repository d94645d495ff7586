"""`POST /v1/classify`: photos in, labels out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from gateway.errors import ImageProblem, NoUsableImage
from gateway.inference import Outcome
from gateway.observe.logging import request_id
from gateway.observe.stages import Stage, Timeline
from gateway.web import parameters, schemas
from gateway.web.body import IMAGE_FIELDS, File, read_upload
from gateway.web.gate import Gate, GateDep

router = APIRouter(tags=["classify"])

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
_FORM = {
    "type": "object",
    "properties": {
        "files": {
            **_FILES,
            "description": f"one part for each image; also {', '.join(sorted(IMAGE_FIELDS))}",
        },
        "top_k": {"type": "integer", "minimum": 1, "default": 5},
        "threshold": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
        "model": {"type": "string"},
    },
    "required": ["files"],
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": _FORM},
            "application/json": {"schema": schemas.ClassifyRequest.model_json_schema()},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {"name": "top_k", "in": "query", "schema": {"type": "integer", "minimum": 1, "default": 5}},
        {
            "name": "threshold",
            "in": "query",
            "schema": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
        },
        {"name": "model", "in": "query", "schema": {"type": "string"}},
        {"name": "X-Request-Timeout", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}},
        {"name": "X-Request-ID", "in": "header", "schema": {"type": "string"}},
    ],
}


@router.post(
    "/v1/classify",
    response_model=schemas.ClassifyResponse,
    responses=dict.fromkeys((400, 404, 408, 413, 415, 422, 500, 502, 503, 504), schemas.PROBLEM),
    openapi_extra=_BODY,
    summary="Classify images",
)
async def classify(request: Request, gate: GateDep) -> Response:
    """Images as a form, as JSON, or as a bare body; one result for each, in the order sent."""
    with gate.admission.hold() as grow:
        return await _classify(request, gate, grow)


async def _classify(request: Request, gate: Gate, grow: Callable[[int], None]) -> Response:
    with Stage("read") as read:
        upload = await read_upload(request, gate.settings, grow)
        read.note({"tidegate.images": len(upload.files)})
    deadline = parameters.deadline(request, gate.settings)
    model = await gate.discovery.get(upload.parameters.get("model"))
    question = parameters.question(upload.parameters, model)
    files = [file.content for file in upload.files]
    answer = await gate.inference.classify(files, model, question, deadline)
    timeline: Timeline = request.scope["state"]["timeline"]
    with Stage("encode"):
        results = [_result(i, file, x) for i, (file, x) in enumerate(zip(upload.files, answer.outcomes, strict=True))]
        if all(isinstance(outcome, ImageProblem) for outcome in answer.outcomes):
            raise NoUsableImage("None of the images could be classified; results says why.", results)
        body = {
            "request_id": request_id.get(),
            "model": {"name": model.name, "version": answer.version},
            "results": results,
            "timings_ms": {name: round(seconds * 1000, 3) for name, seconds in timeline.timings().items()},
        }
        return Response(to_json(body), media_type="application/json")


def _result(index: int, file: File, outcome: Outcome) -> dict[str, object]:
    head = {"index": index, "filename": file.filename}
    if isinstance(outcome, ImageProblem):
        return {**head, "status": "error", "error": outcome}
    return {**head, "status": "ok", "predictions": outcome}
