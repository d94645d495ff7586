"""The OpenAPI document, and answers that are as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import settings
from jsonschema import Draft202012Validator

from gateway.app import create_app
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web.problems import STATUS, TITLES
from tests.requests_from_openapi import STEADY, ask, document

ASKED = document()
PAGE: dict[str, Any] = create_app(Settings(), FakeTriton()).openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in PAGE["paths"].items()
    for method, operation in operations.items()
}
CLASSIFY = OPERATIONS["POST /v1/classify"]
ASKING = "/v1/(classify|embed|text/classify|embeddings|moderations)"


@ASKED.include(path_regex=ASKING).parametrize()
@settings(STEADY, max_examples=120)
def test_any_request_that_asks_a_model_is_answered_as_documented(
    case: schemathesis.Case[Any], client: httpx.Client
) -> None:
    """Pictures and damage, sense and nonsense in all three forms: status, type, headers and shape are documented."""
    ask(case, str(client.base_url))


@ASKED.exclude(path_regex=ASKING).parametrize()
@settings(STEADY, max_examples=8)
def test_any_other_request_is_answered_as_documented(case: schemathesis.Case[Any], client: httpx.Client) -> None:
    """The other routes, under every method."""
    ask(case, str(client.base_url))


def test_the_document_is_openapi(client: httpx.Client) -> None:
    """It is valid OpenAPI 3.1, is what the gateway serves, and the viewer is there to show it."""
    ASKED.validate()
    assert client.get("/openapi.json").json() == json.loads(json.dumps(PAGE))
    assert client.get("/docs").status_code == 200


def nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(each)


def test_references_lead_somewhere() -> None:
    """Every `$ref` names a part of the document, and nothing of the framework's own 422 is left."""
    for node in nodes(PAGE):
        if "$ref" in node:
            part: Any = PAGE
            for step in node["$ref"].removeprefix("#/").split("/"):
                part = part[step]
    assert "ValidationError" not in json.dumps(PAGE)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_each_status_has_its_own_codes(operation: dict[str, Any]) -> None:
    """An answer's examples and its schema name the same codes, all of them of that very status."""
    for status, answer in operation["responses"].items():
        if status == "200":
            continue
        (content,) = answer["content"].items()
        assert content[0] == "application/problem+json"
        examples = {name: example["value"] for name, example in content[1]["examples"].items()}
        _, narrowed = content[1]["schema"]["allOf"]
        assert list(examples) == narrowed["properties"]["code"]["enum"]
        for code, problem in examples.items():
            assert (problem["code"], problem["status"], problem["title"]) == (code, STATUS[code], TITLES[code])
            assert STATUS[code] == int(status)


def test_every_code_is_listed() -> None:
    """No code of the table is forgotten."""
    listed = {
        code
        for operation in OPERATIONS.values()
        for answer in operation["responses"].values()
        for c in answer["content"].values()
        for code in c.get("examples", ())
    }
    assert listed == set(STATUS)
    codes = PAGE["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
    assert codes == list(STATUS)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_examples_are_true(operation: dict[str, Any]) -> None:
    """Every example of a request and of an answer fits the schema beside it."""
    contents = [*operation["responses"].values(), operation.get("requestBody", {"content": {}})]
    media = [media for each in contents for media in each["content"].values()]
    assert media
    for each in media:
        validator = Draft202012Validator({**each["schema"], "components": PAGE["components"]})
        examples = [example["value"] for example in each.get("examples", {}).values()]
        examples += [each["example"]] if "example" in each else []
        assert examples
        for example in examples:
            validator.validate(example)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_headers_stand_where_they_are_sent(operation: dict[str, Any]) -> None:
    """An id and timings everywhere, `Retry-After` with 429 and 503, others with their own status only."""
    for status, answer in operation["responses"].items():
        assert {"X-Request-ID", "Server-Timing"} <= set(answer["headers"])
        assert ("Retry-After" in answer["headers"]) == (status in ("429", "503"))
        assert ("WWW-Authenticate" in answer["headers"]) == (status == "401")
        assert ("Allow" in answer["headers"]) == (status == "405")


def test_requests_have_three_forms() -> None:
    """A form, JSON and a bare body, each with an example; the JSON ones are real pictures that are classified."""
    content = CLASSIFY["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json", "image/*", "application/octet-stream"}


EXAMPLES = [
    (route, example["value"])
    for route, operation in OPERATIONS.items()
    if "requestBody" in operation
    for example in operation["requestBody"]["content"]["application/json"]["examples"].values()
]


@pytest.mark.parametrize(("route", "example"), EXAMPLES)
def test_the_json_examples_work(client: httpx.Client, route: str, example: dict[str, Any]) -> None:
    """What the page shows may be sent as it stands, to every route that takes JSON."""
    answer = client.post(route.removeprefix("POST "), json=example)
    assert answer.status_code == 200, answer.text
    results = answer.json().get("results") or answer.json()["data"]
    sent = example.get("images") or example.get("texts") or example["input"]
    assert len(results) == (len(sent) if isinstance(sent, list) else 1)
    assert {result.get("status", "ok") for result in results} == {"ok"}


@pytest.mark.parametrize("media_type", ["text/plain", "text/html"])
def test_media_types_are_the_real_ones(client: httpx.Client, media_type: str) -> None:
    """Metrics are text with a version, the page is HTML."""
    path = {"text/plain": "/metrics", "text/html": "/"}[media_type]
    (listed,) = OPERATIONS[f"GET {path}"]["responses"]["200"]["content"]
    assert listed.startswith(media_type)
    assert client.get(path).headers["content-type"].startswith(listed)
