"""Requests made from the OpenAPI document, with real pictures among them, and what their answers must be."""

from __future__ import annotations

import base64
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gateway.app import create_app
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise

PICTURES = [encode(noise(9, 7), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")]
HTTP_ITSELF = {"content-type", "content-length", "date", "connection"}  # no document lists them


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A picture that was cut, or in which one byte is another."""
    picture = bytearray(draw(st.sampled_from(PICTURES)))
    at = draw(st.integers(0, len(picture) - 1))
    if draw(st.booleans()):
        return bytes(picture[:at])
    picture[at] ^= draw(st.integers(1, 255))
    return bytes(picture)


STEADY = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
"""The same requests every time, however slow the machine."""

FILES = st.sampled_from(PICTURES) | damaged() | st.binary(max_size=64)
BASE64 = FILES.map(lambda file: base64.b64encode(file).decode()) | st.text()
MODELS = ("ensemble_model", "embedding_ensemble", "text_classifier", "text_embedder", "open_nsfw")
NAMES = st.sampled_from(MODELS) | st.text()


def document() -> BaseSchema:
    """The gateway's own document, with what no document can say: which bytes are a picture, which names a model's."""
    page = create_app(Settings(), FakeTriton()).openapi()
    components = page["components"]["schemas"]
    components["ImageInput"]["properties"]["data"]["anyOf"][0]["format"] = "picture"
    for name, component in components.items():
        if name.endswith("Request"):
            component["properties"]["model"]["anyOf"][0]["format"] = "model"
            component["properties"]["version"]["anyOf"][0]["format"] = "version"
    for operations in page["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] in ("model", "name", "version"):
                    kind = "version" if parameter["name"] == "version" else "model"
                    parameter["schema"] = {"type": "string", "format": kind}
    schemathesis.openapi.format("picture", BASE64)
    schemathesis.openapi.format("model", NAMES)
    schemathesis.openapi.format("version", st.just("1") | st.text())
    schemathesis.openapi.format("binary", FILES)
    for kind in ("image/*", "application/octet-stream"):
        schemathesis.openapi.media_type(kind, FILES)
    return schemathesis.openapi.from_dict(page, config=schemathesis.Config.from_dict({"generation": {"mode": "all"}}))


def ask(case: schemathesis.Case[Any], base_url: str) -> None:
    """One request; its answer must be one that the document lists for its route, in every respect."""
    answer = case.call_and_validate(
        base_url,
        excluded_checks=[
            positive_data_acceptance,  # a 422 may be right where no schema can say so: see `_may_be_refused`
            not_a_server_error,  # 504 is right for a caller that leaves no time; every other 5xx is refused below
        ],
    )
    assert answer.status_code < 500 or (answer.status_code == 504 and leaves_no_time(case)), answer.text
    listed = case.operation.responses.find_by_status_code(answer.status_code)
    assert listed is not None
    assert set(answer.headers) - HTTP_ITSELF <= {name.lower() for name, _ in listed.headers.items()}
    assert case.meta is not None
    if case.meta.generation.mode.is_positive and answer.status_code >= 400:
        assert answer.status_code in (404, 504) or _may_be_refused(answer.json()), answer.text


def _may_be_refused(problem: dict[str, Any]) -> bool:
    """By what no schema can say, such as how many classes there are, that 5.0 is no integer, what goes together."""
    if problem["code"] == "invalid_parameter":
        return any(words in problem["detail"] for words in _NOT_IN_A_SCHEMA)
    return problem["code"] in ("no_usable_image", "missing_image", "no_usable_text")


_NOT_IN_A_SCHEMA = (
    "top_k must be a whole number",
    "more than once",
    "is for another task",
    "of use only with classify",
    "does not embed",
    "does not moderate",
    "dimensions must be",
    "cannot be used",
    " takes texts, and",
    " takes images, and",
)


def leaves_no_time(case: schemathesis.Case[Any]) -> bool:
    """Whether the request wants its answer in less than a second."""
    try:
        return 0 < float(dict(case.headers).get("X-Request-Timeout", 60)) < 1
    except ValueError:
        return False
