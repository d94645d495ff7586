"""`POST /v1/text/classify`: texts in, labels out."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from gateway.cache import Row
from gateway.errors import MissingText, TooManyTexts
from gateway.inference import Question
from gateway.inputs import as_images
from gateway.observe.stages import Stage
from gateway.predictions import known_share
from gateway.settings import Settings
from gateway.triton.model import TEXT_CLASSIFY
from gateway.triton.tensors import CLASSIFICATION
from gateway.web import answers, openapi, parameters, schemas
from gateway.web.access import counted_caller
from gateway.web.body import read_json
from gateway.web.gate import GateDep

router = APIRouter(tags=["texts"])


@router.post(
    "/v1/text/classify",
    response_model=schemas.TextResponse,
    responses=openapi.responses(openapi.JSON, openapi.TEXTS_CLASSIFIED, *openapi.OF_TEXTS),
    openapi_extra=openapi.TEXT_REQUEST,
    summary="Classify texts",
)
async def classify_texts(request: Request, gate: GateDep) -> Response:
    """Texts as JSON; one result for each, in the order sent. `known_words` says how much the model had to go by."""
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        with Stage("read") as read:
            most = gate.settings.max_texts
            wanted = await read_json(request, gate.settings, grow, schemas.TextRequest, most)
            read.note({"tidegate.texts": len(wanted.texts)})
        if not wanted.texts:
            raise MissingText("The list `texts` is empty.")
        texts = [text.encode("utf-8", "replace") for text in wanted.texts]
        check_texts(texts, gate.settings)
        await gate.rates.add(caller.identity, as_images(len(texts), sum(map(len, texts))))
        deadline = parameters.deadline(request, gate.settings)
        given = wanted.parameters()
        model = await parameters.model(given, TEXT_CLASSIFY, gate.settings.default_text_model, gate, caller)
        ranking = parameters.ranking(given, model)
        answered = await gate.inference.answer(
            texts, Question(model, (CLASSIFICATION,), parameters.version(given)), deadline, caller.identity
        )

        def show(row: Row) -> dict[str, object]:
            return {"predictions": ranking.predictions(row), "known_words": known_share(row.values)}

        return answers.of_texts(request, model, answered, show)


def check_texts(texts: Sequence[bytes], settings: Settings) -> None:
    """Raises `TooManyTexts` for too many, or too long ones together: one request must not fill a model's queue."""
    if len(texts) > settings.max_texts:
        raise TooManyTexts(f"One request may hold {settings.max_texts} texts.")
    size = sum(map(len, texts))
    if size > settings.max_texts_bytes:
        raise TooManyTexts(
            f"The texts of one request may have {settings.max_texts_bytes} bytes together; these have {size}."
        )
