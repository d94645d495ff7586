"""`POST /v1/classify`: photos in, labels out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.inference import Question
from gateway.triton.model import CLASSIFY
from gateway.triton.tensors import CLASSIFICATION
from gateway.web import answers, openapi, parameters, schemas
from gateway.web.access import counted_caller
from gateway.web.gate import GateDep
from gateway.web.images import read_images

router = APIRouter(tags=["images"])


@router.post(
    "/v1/classify",
    response_model=schemas.ClassifyResponse,
    responses=openapi.responses(openapi.JSON, openapi.CLASSIFIED, *openapi.OF_IMAGES),
    openapi_extra=openapi.CLASSIFY_REQUEST,
    summary="Classify images",
)
async def classify(request: Request, gate: GateDep) -> Response:
    """Images as a form, as JSON, or as a bare body; one result for each, in the order sent."""
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        upload = await read_images(request, gate, caller, grow, schemas.ClassifyRequest)
        deadline = parameters.deadline(request, gate.settings)
        model = await parameters.model(upload.parameters, CLASSIFY, gate.settings.default_model, gate, caller)
        ranking = parameters.ranking(upload.parameters, model)
        files = await gate.fetch([file.content for file in upload.files], deadline, grow)
        question = Question(model, (CLASSIFICATION,), parameters.version(upload.parameters))
        answered = await gate.inference.answer(files, question, deadline, caller.identity)
        return answers.of_images(
            request, upload, model, answered, lambda row: {"predictions": ranking.predictions(row)}
        )
