"""The OpenAPI document of `GET /openapi.json`: what each route takes, and every answer that it can give.

Routes name the codes that they can answer with; statuses, titles and examples follow from the one table of problems.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from gateway.triton.model import CATEGORIES
from gateway.triton.tensors import PROBE_PICTURE
from gateway.web.headers import CACHE, SAFE
from gateway.web.problems import MEDIA_TYPE, STATUS, TITLES, document
from gateway.web.schemas import (
    ClassifyRequest,
    EmbeddingsRequest,
    EmbedRequest,
    ModerationsRequest,
    Problem,
    TextRequest,
)

JSON = "application/json"
REFERENCE = "#/components/schemas/{model}"
EVERYWHERE = ("malformed_request", "method_not_allowed", "body_timeout", "internal_error")
"""Codes that any path may answer with: of the protocol, of another method, of a fault of ours."""

_OF_ALL = (
    "unauthorized",
    "model_not_found",
    "body_too_large",
    "unsupported_encoding",
    "invalid_parameter",
    "rate_limited",
    "bad_upstream_response",
    "overloaded",
    "upstream_unavailable",
    "model_not_ready",
    "deadline_exceeded",
)
OF_IMAGES = (*_OF_ALL, "too_many_images", "missing_image", "no_usable_image")
"""Codes of every route that asks about images; then of those about texts, and of the two in OpenAI's shape."""
OF_TEXTS = (*_OF_ALL, "too_many_texts", "missing_text", "no_usable_text")
OF_OPENAI = (*_OF_ALL, "too_many_images", "too_many_texts", "missing_text")

_ID = "84b3d0d63a2b4a4fa2f4e8cd5e7f1e9c"
_FAILED = {
    "index": 0,
    "filename": "notes.txt",
    "status": "error",
    "error": {
        "code": "unsupported_image",
        "message": "This is not a picture of a known kind; taken are JPEG, PNG, WebP, GIF, BMP, TIFF and AVIF.",
    },
}
_TIMINGS = {"read": 0.309, "wait": 0.023, "infer": 14.111, "total": 14.84}
_CAT = {"index": 0, "filename": "cat.jpg", "status": "ok"}
CLASSIFIED = {
    "request_id": _ID,
    "model": {"name": "ensemble_model", "version": "1"},
    "results": [
        {
            **_CAT,
            "predictions": [
                {"label": "tiger cat", "class_id": 282, "probability": 0.3914},
                {"label": "Egyptian cat", "class_id": 285, "probability": 0.34},
            ],
        },
        {**_FAILED, "index": 1},
    ],
    "timings_ms": _TIMINGS,
}
EMBEDDED = {
    "request_id": _ID,
    "model": {"name": "embedding_ensemble", "version": "1"},
    "dim": 4,
    "results": [{**_CAT, "embedding": [0.5, 0.1, 0.7, 0.5]}, {**_FAILED, "index": 1}],
    "timings_ms": _TIMINGS,
}
TEXTS_CLASSIFIED = {
    "request_id": _ID,
    "model": {"name": "text_classifier", "version": "1"},
    "results": [
        {
            "index": 0,
            "status": "ok",
            "predictions": [{"label": "Sports", "class_id": 2, "probability": 0.9127}],
            "known_words": 0.875,
        },
        {
            "index": 1,
            "status": "error",
            "error": {"code": "empty_text", "message": "The text is empty, or only spaces."},
        },
    ],
    "timings_ms": {"read": 0.071, "wait": 0.012, "infer": 0.914, "total": 1.325},
}
EMBEDDINGS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.1, 0.7, 0.5]}],
    "model": "text_embedder",
    "version": "1",
    "usage": {"prompt_tokens": 0, "total_tokens": 0},
}
MODERATIONS = {
    "id": f"modr-{_ID}",
    "model": "open_nsfw",
    "version": "1",
    "results": [
        {
            "flagged": False,
            "categories": dict.fromkeys(CATEGORIES, False),
            "category_scores": {**dict.fromkeys(CATEGORIES, 0.0), "sexual": 0.0117},
            "category_applied_input_types": {**{each: [] for each in CATEGORIES}, "sexual": ["image"]},
        }
    ],
}
_MODEL = {
    "id": "ensemble_model",
    "object": "model",
    "task": "classify",
    "version": "1",
    "versions": [{"version": "1", "weight": 1.0, "shadow": 0.0}],
    "classes": 3,
    "dim": 0,
    "normalised": False,
    "moderates": [],
    "max_batch": 32,
    "ready": True,
    "certified": True,
    "precision": "int8",
    "weights": "pretrained",
}
MODEL_LIST = {"object": "list", "data": [_MODEL], "unavailable": []}
MODEL_DETAIL = {
    **_MODEL,
    "certificate": {"version": "1", "precision": "int8", "source": {"weights": "pretrained"}},
    "labels": ["tench", "goldfish", "great white shark"],
}


def responses(
    media_type: str, example: object, *codes: str, headers: Iterable[str] = ()
) -> dict[int | str, dict[str, Any]]:
    """A route's answers: 200 with this example and more `headers`, and the problems of `codes` and of every path."""
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in STATUS:
        if code in codes or code in EVERYWHERE:
            by_status[STATUS[code]].append(code)
    ok: dict[str, Any] = {
        "content": {media_type: {"example": example}},
        "headers": {name: {"required": True, "schema": {"type": "string"}} for name in headers},
    }
    if media_type != JSON:
        ok["content"][media_type]["schema"] = {"type": "string"}
    return {200: ok, **{status: _problems(status, by_status[status]) for status in sorted(by_status)}}


def _problems(status: int, codes: list[str]) -> dict[str, Any]:
    narrowed = {"status": {"const": status}, "code": {"enum": codes}}
    schema = {"allOf": [{"$ref": REFERENCE.format(model="Problem")}, {"properties": narrowed}]}
    examples = {code: {"summary": TITLES[code], "value": _example(code)} for code in codes}
    return {
        "description": "; ".join(TITLES[code] for code in codes),
        "content": {MEDIA_TYPE: {"schema": schema, "examples": examples}},
    }


def _example(code: str) -> dict[str, object]:
    members = {
        "no_usable_image": {"results": [_FAILED]},
        "no_usable_text": {"results": [{**TEXTS_CLASSIFIED["results"][1], "index": 0}]},  # type: ignore[index]  # JSON
    }.get(code, {})
    return document(code, f"{TITLES[code]}.", _ID, **members)


_TOP_K = {
    "type": "integer",
    "minimum": 1,
    "default": 5,
    "description": "most predictions of an image; at most the number of classes",
}
_THRESHOLD = {
    "type": "number",
    "minimum": 0,
    "maximum": 1,
    "default": 0,
    "description": "least probability of a prediction",
}
_NAME = {"type": "string", "description": "one of GET /v1/models; the route's default model if none is named"}
_VERSION = {
    "type": "string",
    "description": "only this version of the model; whichever takes its traffic if none is named",
}
_NORMALIZE = {"type": "boolean", "default": False, "description": "unit length (L2), whatever the model gives"}
_ENCODING = {
    "type": "string",
    "enum": ["float", "base64"],
    "default": "float",
    "description": "numbers, or base64 of them as FP32, little-endian",
}
_AS_WELL = {
    "type": "boolean",
    "default": False,
    "description": "predictions, too, from the same decoded picture; top_k and threshold are theirs",
}
_MODEL_CHOICE = {"model": _NAME, "version": _VERSION}
_RANKING = {"top_k": _TOP_K, "threshold": _THRESHOLD}
_FILE = {"type": "string", "format": "binary"}
_FILES = {
    "type": "array",
    "minItems": 1,
    "items": _FILE,
    "description": "one part for each image; such a part may also be named file, files[], image or images",
}
_BASE64 = base64.b64encode(PROBE_PICTURE).decode()
_ONE_IMAGE = {"schema": _FILE, "examples": {"photo": {"summary": "the file as it is", "value": "(bytes of photo.jpg)"}}}
_TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "seconds from the end of the body to the answer; at most what the operator allows",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def _images_request(route: str, document: str, parameters: dict[str, dict[str, Any]], sample: str) -> dict[str, Any]:
    """A request in the three forms, with `parameters` in each; `sample` is one of them, as in a query, such as a=1."""
    name, _, value = sample.partition("=")
    given = {name: int(value) if value.isdigit() else value == "true"}
    form = {"type": "object", "properties": {"files": _FILES, **parameters}, "required": ["files"]}
    description = (
        "Images as a form, as JSON, or one image as the body itself. All give the same answer for the "
        "same bytes; the bytes decide what they are, not a name or a type.\n\n"
        f"    curl -F files=@cat.jpg -F files=@dog.png -F {sample} …{route}\n"
        f'    curl --json \'{{"images": [{{"data": "<base64>"}}]}}\' …{route}\n'
        f"    curl -H 'Content-Type: image/jpeg' --data-binary @cat.jpg …{route}?{sample}"
    )
    two_files = {"files": ["(bytes of cat.jpg)", "(bytes of dog.png)"], **given}
    documents = {
        "base64": {"summary": "one image", "value": {"images": [{"data": _BASE64}]}},
        "data_uri": {
            "summary": "two images, one as a data: URI, with parameters",
            "value": {"images": [{"data": f"data:image/png;base64,{_BASE64}"}, {"data": _BASE64}], **given},
        },
    }
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {
                "multipart/form-data": {
                    "schema": form,
                    "examples": {"two_files": {"summary": "two images, with a parameter", "value": two_files}},
                },
                JSON: {"schema": {"$ref": REFERENCE.format(model=document)}, "examples": documents},
                "image/*": _ONE_IMAGE,
                "application/octet-stream": _ONE_IMAGE,
            },
        },
        "parameters": [
            *({"name": name, "in": "query", "schema": schema} for name, schema in parameters.items()),
            _TIMEOUT,
        ],
    }


def _json_request(document: str, **examples: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A request in JSON; each example with its summary."""
    shown = {name: {"summary": summary, "value": value} for name, (summary, value) in examples.items()}
    schema = {"$ref": REFERENCE.format(model=document)}
    return {
        "requestBody": {"required": True, "content": {JSON: {"schema": schema, "examples": shown}}},
        "parameters": [_TIMEOUT],
    }


CLASSIFY_REQUEST = _images_request("/v1/classify", "ClassifyRequest", {**_RANKING, **_MODEL_CHOICE}, "top_k=3")
EMBED_REQUEST = _images_request(
    "/v1/embed",
    "EmbedRequest",
    {
        "normalize": _NORMALIZE,
        "encoding_format": _ENCODING,
        "classify": _AS_WELL,
        "top_k": {key: value for key, value in _TOP_K.items() if key != "default"},
        "threshold": {key: value for key, value in _THRESHOLD.items() if key != "default"},
        **_MODEL_CHOICE,
    },
    "normalize=true",
)
TEXT_REQUEST = _json_request(
    "TextRequest",
    one=("one text", {"texts": ["The striker scored twice before the break"]}),
    two=("two texts, with a parameter", {"texts": ["Shares rose on Monday", "A probe reached orbit"], "top_k": 1}),
)
EMBEDDINGS_REQUEST = _json_request(
    "EmbeddingsRequest",
    texts=("texts, for a text embedder", {"input": ["Shares rose", "A probe"], "model": "text_embedder"}),
    image=("an image, for an embedder of images", {"input": f"data:image/png;base64,{_BASE64}"}),
)
MODERATIONS_REQUEST = _json_request(
    "ModerationsRequest",
    image=(
        "an image",
        {"input": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_BASE64}"}}]},
    ),
)

_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "1 to 128 letters, digits, dots, dashes and underscores come back as they are; else an id is made",
    "schema": {"type": "string"},
}
_DOCUMENTS = (ClassifyRequest, EmbedRequest, TextRequest, EmbeddingsRequest, ModerationsRequest)
_HEADERS = {
    "X-Request-ID": {
        "description": "the caller's, if it sent a sane one; finds the request in the log",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    },
    "Server-Timing": {
        "description": "milliseconds of each stage",
        "required": True,
        "schema": {"type": "string", "pattern": r"^[a-z]+;dur=[0-9]+\.[0-9]+(, [a-z]+;dur=[0-9]+\.[0-9]+)*$"},
    },
    **{name: {"required": True, "schema": {"const": value}} for name, value in SAFE.items()},
    "Cache-Control": {"required": True, "schema": {"enum": [*CACHE.values(), "no-cache"]}},
    "WWW-Authenticate": {"description": "how to show a key", "required": True, "schema": {"const": "Bearer"}},
    "Retry-After": {
        "description": "seconds after which to ask again",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "Allow": {
        "description": "the methods that the path takes",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Z]+(, [A-Z]+)*$"},
    },
}
_ONLY_WITH = {"WWW-Authenticate": ("401",), "Retry-After": ("429", "503"), "Allow": ("405",)}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key of the operator's: tg_…"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(app: FastAPI, *, keys: bool = False) -> dict[str, Any]:
    """The document, made once: the framework's own, without what it makes up, and with what every answer has.

    With `keys` it says that the routes that can answer 401 need one.
    """
    if app.openapi_schema is None:
        page = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, own = models_json_schema(
            [
                *((kind, "validation") for kind in _DOCUMENTS),
                (Problem, "serialization"),
            ],
            ref_template=REFERENCE,
        )
        components = page["components"]
        components["schemas"].update(own["$defs"])
        components["headers"] = _HEADERS
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        for operations in page["paths"].values():
            for operation in operations.values():
                _complete(operation)
                if keys and "401" in operation["responses"]:
                    operation["security"] = [{name: []} for name in _KEYS]
        if keys:
            components["securitySchemes"] = _KEYS
        app.openapi_schema = page
    return app.openapi_schema


def _complete(operation: dict[str, Any]) -> None:
    operation.setdefault("parameters", []).append(_REQUEST_ID)
    answers = operation["responses"]
    if JSON in answers.get("422", {}).get("content", {}):  # FastAPI's own, for values that it would have parsed
        del answers["422"]
    for status, answer in answers.items():
        everywhere = [name for name in _HEADERS if status in _ONLY_WITH.get(name, (status,))]
        answer.setdefault("headers", {}).update({name: {"$ref": f"#/components/headers/{name}"} for name in everywhere})
