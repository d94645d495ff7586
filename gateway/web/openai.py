"""`POST /v1/embeddings` and `POST /v1/moderations`: the shapes of the OpenAI API, so that its clients work unchanged.

There an item has no error of its own, so the first one that cannot be used fails the request, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from gateway.access import Caller
from gateway.cache import Row
from gateway.errors import InvalidParameter, MissingText, ModelNotReady, TooManyImages
from gateway.fetch import Address, Content
from gateway.inference import Question
from gateway.inputs import UNKNOWN_TEXT, as_images
from gateway.observe.logging import request_id
from gateway.observe.stages import Stage
from gateway.predictions import known_share
from gateway.triton.model import CATEGORIES, EMBED, TEXT_EMBED, Model
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING
from gateway.web import answers, openapi, parameters, schemas
from gateway.web.access import counted_caller
from gateway.web.body import decode_base64, read_json
from gateway.web.gate import Gate, GateDep
from gateway.web.text import check_texts

router = APIRouter(tags=["openai"])

_DATA_URI = re.compile(r"data:[^,\s]{0,256};base64,", re.IGNORECASE)  # "data: shares rose" is a text
Grow = Callable[[int], None]


@dataclass(frozen=True)
class Item:
    """One thing to be judged or embedded: where it stands in the request, and what it is."""

    place: str
    of: str
    """"images" or "texts"."""
    content: Content


@router.post(
    "/v1/embeddings",
    response_model=schemas.EmbeddingsResponse,
    responses=openapi.responses(openapi.JSON, openapi.EMBEDDINGS, *openapi.OF_OPENAI),
    openapi_extra=openapi.EMBEDDINGS_REQUEST,
    summary="Embed texts, or images as data: URIs",
)
async def embeddings(request: Request, gate: GateDep) -> Response:
    """Texts for a text embedder, `data:` URIs of images for an embedder of images; one kind in a request."""
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        wanted = await _read(request, gate, grow, schemas.EmbeddingsRequest)
        items = _strings(wanted.input)
        of = items[0].of
        default = gate.settings.default_embedder if of == "images" else gate.settings.default_text_embedder
        name = caller.asked_model(wanted.model, default)
        model = await gate.discovery.get(name, wanted.version or None, (EMBEDDING,))
        if model.task not in (EMBED, TEXT_EMBED):
            raise InvalidParameter(f"The model {model.name} does not embed: ask it at POST {model.task.route}.")
        if wanted.dimensions not in (None, model.dim):
            raise InvalidParameter(f"dimensions must be {model.dim}, or left out: the model has no other.")
        rows, version = await _ask(request, gate, caller, grow, items, model, EMBEDDING, wanted.version or None)
        with Stage("encode"):
            encoding = wanted.encoding_format or "float"
            data = []
            for index, row in enumerate(rows):
                embedding = answers.embedding(row.values[EMBEDDING], normalize=False, encoding=encoding)
                data.append({"object": "embedding", "index": index, "embedding": embedding})
            usage = {"prompt_tokens": 0, "total_tokens": 0}  # there are no tokens here
            body = {"object": "list", "data": data, "model": model.name, "version": version, "usage": usage}
            return Response(to_json(body), media_type="application/json")


@router.post(
    "/v1/moderations",
    response_model=schemas.ModerationsResponse,
    responses=openapi.responses(openapi.JSON, openapi.MODERATIONS, *openapi.OF_OPENAI),
    openapi_extra=openapi.MODERATIONS_REQUEST,
    summary="Judge texts or images by the categories of the OpenAI API",
)
async def moderations(request: Request, gate: GateDep) -> Response:
    """One result for each text, or one for all parts of a list of parts.

    A category that no model here judges is false, 0, and has an empty list in `category_applied_input_types`.
    """
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        wanted = await _read(request, gate, grow, schemas.ModerationsRequest)
        items, together = _parts(wanted.input)
        name = caller.asked_model(wanted.model, gate.settings.default_moderator)
        model = await gate.discovery.get(name, wanted.version or None)
        if not model.moderation:
            raise InvalidParameter(f"The model {model.name} does not moderate; GET /v1/models says which do.")
        rows, version = await _ask(request, gate, caller, grow, items, model, CLASSIFICATION, wanted.version or None)
        with Stage("encode"):
            if not all(row.model.moderation for row in rows):
                raise ModelNotReady("The model was exchanged for one that does not moderate.")
            kind = "image" if model.task.of == "images" else "text"
            judged = [_judge(row) for row in rows]
            results = [_result(judged, kind)] if together else [_result([each], kind) for each in judged]
            body = {"id": f"modr-{request_id.get()}", "model": model.name, "version": version, "results": results}
            return Response(to_json(body), media_type="application/json")


async def _read(request: Request, gate: Gate, grow: Grow, kind: type[schemas.OpenAI]) -> Any:
    most = max(gate.settings.max_texts, gate.settings.max_images)
    with Stage("read"):
        return await read_json(request, gate.settings, grow, kind, most)


async def _ask(
    request: Request,
    gate: Gate,
    caller: Caller,
    grow: Grow,
    items: Sequence[Item],
    model: Model,
    output: str,
    version: str | None,
) -> tuple[list[Row], str]:
    """A row for each item, and the version that gave them.

    The first one that cannot be used is an `InvalidParameter` that says where it stands; so is a text without a known
    word, whatever is asked: nothing was found in it, and nothing could be.
    """
    settings, images = gate.settings, model.task.of == "images"
    for item in items:
        if item.of != model.task.of:
            kind = "an image" if item.of == "images" else "a text"
            raise InvalidParameter(f"The model {model.name} takes {model.task.of}, and {item.place} is {kind}.")
    if images and len(items) > settings.max_images:
        raise TooManyImages(f"One request may hold {settings.max_images} images.")
    count = len(items)
    if not images:
        texts = [item.content for item in items if isinstance(item.content, bytes)]
        check_texts(texts, settings)
        count = as_images(len(texts), sum(map(len, texts)))
    await gate.rates.add(caller.identity, count)
    deadline = parameters.deadline(request, settings)
    contents = await gate.fetch([item.content for item in items], deadline, grow)
    question = Question(model, (output,), version)
    answered = await gate.inference.answer(contents, question, deadline, caller.identity)
    for item, row in zip(items, answered.rows, strict=True):
        problem = row.problem or (UNKNOWN_TEXT if known_share(row.values) == 0 else None)
        if problem is not None:
            raise InvalidParameter(f"{item.place} cannot be used ({problem.code}): {problem.message}")
    return answered.rows, answered.version


def _strings(value: object) -> list[Item]:
    """The `input` of a request for embeddings: a string or a list of strings, `data:` URIs being images."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise MissingText("input must be a string, or a list of strings with at least one.")
    return [_string(f"input[{i}]", each, images=True) for i, each in enumerate(value)]


def _parts(value: object) -> tuple[list[Item], bool]:
    """The `input` of a request to moderate, and whether its parts are judged together."""
    if isinstance(value, str):
        return [_string("input", value, images=False)], False
    if not isinstance(value, list) or not value:
        raise MissingText("input must be a string, a list of strings, or a list of parts, with at least one.")
    if all(isinstance(each, str) for each in value):
        return [_string(f"input[{i}]", each, images=False) for i, each in enumerate(value)], False
    return [_part(f"input[{i}]", each) for i, each in enumerate(value)], True


def _string(place: str, value: object, *, images: bool) -> Item:
    if not isinstance(value, str):
        raise InvalidParameter(f"{place} must be a string; token numbers are not taken.")
    if images and _DATA_URI.match(value):
        return Item(place, "images", decode_base64(value))
    return Item(place, "texts", value.encode("utf-8", "replace"))


def _part(place: str, value: object) -> Item:
    if not isinstance(value, Mapping):
        raise InvalidParameter(f"{place} must be a part, as the others are: an object with a type.")
    match value:
        case {"type": "text", "text": str(text), **others} if not others:
            return Item(place, "texts", text.encode("utf-8", "replace"))
        case {"type": "image_url", "image_url": {"url": str(url), **inner}, **others} if not others and not inner:
            data = url[:5].lower() == "data:"
            return Item(place, "images", decode_base64(url) if data else Address(url))
    raise InvalidParameter(
        f'{place} must be {{"type": "text", "text": "…"}} or {{"type": "image_url", "image_url": {{"url": "data:…"}}}}.'
    )


@dataclass(frozen=True)
class Judged:
    """What was found in one item: the score of each category that its model judges, and which of them are flagged."""

    scores: Mapping[str, float]
    flagged: frozenset[str]


def _judge(row: Row) -> Judged:
    """By the labels, thresholds and categories of the very version that answered.

    A category's score is the probability of all its labels together; it is flagged as soon as one of them reaches its
    own threshold.
    """
    scores: dict[str, float] = {}
    flagged = set()
    probabilities, labels = row.values[CLASSIFICATION], row.model.labels
    for label, judgement in row.model.moderation.items():
        probability = float(probabilities[labels.index(label)])
        scores[judgement.category] = min(1.0, scores.get(judgement.category, 0.0) + probability)
        if probability >= judgement.threshold:
            flagged.add(judgement.category)
    return Judged(scores, frozenset(flagged))


def _result(judged: Sequence[Judged], kind: str) -> dict[str, object]:
    """Of several items the highest score of each category, and all that is flagged in any."""
    flagged = frozenset().union(*(each.flagged for each in judged))
    scores = {c: max((each.scores[c] for each in judged if c in each.scores), default=None) for c in CATEGORIES}
    return {
        "flagged": bool(flagged),
        "categories": {category: category in flagged for category in CATEGORIES},
        "category_scores": {category: score or 0.0 for category, score in scores.items()},
        "category_applied_input_types": {c: [] if score is None else [kind] for c, score in scores.items()},
    }
