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

from gateway.triton.discovery import PROBE_PICTURE
from gateway.web.headers import CACHE, SAFE
from gateway.web.problems import MEDIA_TYPE, STATUS, TITLES, document
from gateway.web.schemas import ClassifyRequest, Problem

JSON = "application/json"
REFERENCE = "#/components/schemas/{model}"
EVERYWHERE = ("malformed_request", "method_not_allowed", "body_timeout", "internal_error")
"""Codes that any path may answer with: of the protocol, of another method, of a fault of ours."""

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
CLASSIFIED = {
    "request_id": _ID,
    "model": {"name": "ensemble_model", "version": "1"},
    "results": [
        {
            "index": 0,
            "filename": "cat.jpg",
            "status": "ok",
            "predictions": [
                {"label": "tiger cat", "class_id": 282, "probability": 0.3914},
                {"label": "Egyptian cat", "class_id": 285, "probability": 0.34},
            ],
        },
        {**_FAILED, "index": 1},
    ],
    "timings_ms": {"read": 0.309, "wait": 0.023, "infer": 14.111, "total": 14.84},
}
_MODEL = {
    "id": "ensemble_model",
    "object": "model",
    "task": "classify",
    "version": "1",
    "classes": 3,
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
    members = {"results": [_FAILED]} if code == "no_usable_image" else {}
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
_NAME = {"type": "string", "description": "one of GET /v1/models; the default model if none is named"}
_FILE = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "properties": {
        "files": {
            "type": "array",
            "minItems": 1,
            "items": _FILE,
            "description": "one part for each image; such a part may also be named file, files[], image or images",
        },
        "top_k": _TOP_K,
        "threshold": _THRESHOLD,
        "model": _NAME,
    },
    "required": ["files"],
}
_BASE64 = base64.b64encode(PROBE_PICTURE).decode()
_DOCUMENTS = {
    "base64": {"summary": "one image", "value": {"images": [{"data": _BASE64}]}},
    "data_uri": {
        "summary": "two images, one as a data: URI, with parameters",
        "value": {"images": [{"data": f"data:image/png;base64,{_BASE64}"}, {"data": _BASE64}], "top_k": 3},
    },
}
_ONE_IMAGE = {"schema": _FILE, "examples": {"photo": {"summary": "the file as it is", "value": "(bytes of photo.jpg)"}}}
CLASSIFY_REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Images as a form, as JSON, or one image as the body itself. All give the same answer for the "
        "same bytes; the bytes decide what they are, not a name or a type.\n\n"
        "    curl -F files=@cat.jpg -F files=@dog.png -F top_k=3 …/v1/classify\n"
        '    curl --json \'{"images": [{"data": "<base64>"}]}\' …/v1/classify\n'
        "    curl -H 'Content-Type: image/jpeg' --data-binary @cat.jpg …/v1/classify?top_k=3",
        "content": {
            "multipart/form-data": {
                "schema": _FORM,
                "examples": {
                    "two_files": {
                        "summary": "two images, with a parameter",
                        "value": {"files": ["(bytes of cat.jpg)", "(bytes of dog.png)"], "top_k": 3},
                    }
                },
            },
            JSON: {"schema": {"$ref": REFERENCE.format(model="ClassifyRequest")}, "examples": _DOCUMENTS},
            "image/*": _ONE_IMAGE,
            "application/octet-stream": _ONE_IMAGE,
        },
    },
    "parameters": [
        {"name": "top_k", "in": "query", "schema": _TOP_K},
        {"name": "threshold", "in": "query", "schema": _THRESHOLD},
        {"name": "model", "in": "query", "schema": _NAME},
        {
            "name": "X-Request-Timeout",
            "in": "header",
            "description": "seconds from the end of the body to the answer; at most what the operator allows",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        },
    ],
}

_REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "1 to 128 letters, digits, dots, dashes and underscores come back as they are; else an id is made",
    "schema": {"type": "string"},
}
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
            [(ClassifyRequest, "validation"), (Problem, "serialization")], ref_template=REFERENCE
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
