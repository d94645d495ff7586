"""`POST /v1/classify`: photos in, labels out."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from gateway.access import Caller
from gateway.errors import ImageProblem, NoUsableImage
from gateway.inference import Outcome
from gateway.observe.logging import request_id
from gateway.observe.stages import Stage, Timeline
from gateway.web import openapi, parameters, schemas
from gateway.web.access import counted_caller
from gateway.web.body import File, read_upload
from gateway.web.gate import Gate, GateDep

router = APIRouter(tags=["classify"])


@router.post(
    "/v1/classify",
    response_model=schemas.ClassifyResponse,
    responses=openapi.responses(
        openapi.JSON,
        openapi.CLASSIFIED,
        "unauthorized",
        "model_not_found",
        "body_too_large",
        "too_many_images",
        "unsupported_encoding",
        "invalid_parameter",
        "missing_image",
        "no_usable_image",
        "rate_limited",
        "bad_upstream_response",
        "overloaded",
        "upstream_unavailable",
        "model_not_ready",
        "deadline_exceeded",
    ),
    openapi_extra=openapi.CLASSIFY_REQUEST,
    summary="Classify images",
)
async def classify(request: Request, gate: GateDep) -> Response:
    """Images as a form, as JSON, or as a bare body; one result for each, in the order sent."""
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        return await _classify(request, gate, caller, grow)


async def _classify(request: Request, gate: Gate, caller: Caller, grow: Callable[[int], None]) -> Response:
    with Stage("read") as read:
        upload = await read_upload(request, gate.settings, grow)
        read.note({"tidegate.images": len(upload.files)})
    await gate.rates.add(caller.identity, len(upload.files))
    deadline = parameters.deadline(request, gate.settings)
    wanted = caller.asked_model(upload.parameters.get("model"), gate.settings.default_model)
    model = await gate.discovery.get(wanted)
    question = parameters.question(upload.parameters, model)
    files = await gate.fetch([file.content for file in upload.files], deadline, grow)
    answer = await gate.inference.classify(files, model, question, deadline, caller.identity)
    timeline: Timeline = request.scope["state"]["timeline"]
    with Stage("encode"):
        results = [_result(i, file, x) for i, (file, x) in enumerate(zip(upload.files, answer.outcomes, strict=True))]
        if all(isinstance(outcome, ImageProblem) for outcome in answer.outcomes):
            raise NoUsableImage(f"None of the images could be classified; results says why.{upload.hint}", results)
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
