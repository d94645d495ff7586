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
NAMES = st.just("ensemble_model") | st.text()


def document() -> BaseSchema:
    """The gateway's own document, with what no document can say: which bytes are a picture, which names a model's."""
    page = create_app(Settings(), FakeTriton()).openapi()
    components, classify = page["components"]["schemas"], page["paths"]["/v1/classify"]["post"]
    components["ImageInput"]["properties"]["data"]["anyOf"][0]["format"] = "picture"
    components["ClassifyRequest"]["properties"]["model"]["anyOf"][0]["format"] = "model"
    for parameter in [*classify["parameters"], *page["paths"]["/v1/models/{name}"]["get"]["parameters"]]:
        if parameter["name"] in ("model", "name"):
            parameter["schema"] = {"type": "string", "format": "model"}
    schemathesis.openapi.format("picture", BASE64)
    schemathesis.openapi.format("model", NAMES)
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
    """By what no schema can say: how many classes there are, that 5.0 is no integer, that two places must agree."""
    if problem["code"] == "invalid_parameter":
        return problem["detail"].startswith("top_k must be a whole number") or "more than once" in problem["detail"]
    return problem["code"] in ("no_usable_image", "missing_image")


def leaves_no_time(case: schemathesis.Case[Any]) -> bool:
    """Whether the request wants its answer in less than a second."""
    try:
        return 0 < float(dict(case.headers).get("X-Request-Timeout", 60)) < 1
    except ValueError:
        return False
