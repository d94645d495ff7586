"""The route: three forms in, one shape out."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from gateway.errors import BadUpstreamResponse, ModelNotReady, Overloaded, TidegateError, UpstreamUnavailable
from gateway.triton.fake import FakeTriton
from gateway.web.schemas import ClassifyResponse, Problem
from tests.pictures import encode, noise
from tests.servers import metric

PICTURE = encode(noise(8, 8), "JPEG")


def classify(client: httpx.Client, *files: bytes, **query: Any) -> httpx.Response:
    return client.post("/v1/classify", params=query, files=[("files", (f"{i}.jpg", f)) for i, f in enumerate(files)])


def test_three_forms_one_answer(client: httpx.Client) -> None:
    """A form, JSON and a bare body of any type give the same predictions."""
    answers = [classify(client, PICTURE)]
    answers.append(client.post("/v1/classify", json={"images": [{"data": base64.b64encode(PICTURE).decode()}]}))
    kinds = ("image/jpeg", "application/octet-stream", "text/plain", "")
    answers += [client.post("/v1/classify", content=PICTURE, headers={"content-type": kind}) for kind in kinds]
    predictions = [answer.json()["results"][0]["predictions"] for answer in answers]
    assert all(p == predictions[0] for p in predictions)
    assert len(predictions[0]) == 5


def test_the_answer_has_its_documented_shape(client: httpx.Client) -> None:
    """The body validates against the schema of the OpenAPI page, with nothing else in it."""
    answer = classify(client, PICTURE, b"junk")
    body = ClassifyResponse.model_validate(answer.json(), strict=True)
    assert body.request_id == answer.headers["x-request-id"]
    assert (body.model.name, body.model.version) == ("ensemble_model", "1")
    assert [r.index for r in body.results] == [0, 1]
    assert set(answer.json()["results"][0]) == {"index", "filename", "status", "predictions"}
    assert set(answer.json()["results"][1]) == {"index", "filename", "status", "error"}
    assert {t.partition(";")[0] for t in answer.headers["server-timing"].split(", ")} == {
        "read",
        "wait",
        "infer",
        "total",
    }


def test_parameters_in_query_form_and_json(client: httpx.Client) -> None:
    """`top_k` and `threshold` work in every form."""
    assert len(classify(client, PICTURE, top_k=3).json()["results"][0]["predictions"]) == 3
    answer = client.post("/v1/classify", files={"files": PICTURE}, data={"top_k": "2"})
    assert len(answer.json()["results"][0]["predictions"]) == 2
    document = {"images": [{"data": base64.b64encode(PICTURE).decode()}], "top_k": 10, "threshold": 0.1}
    kept = client.post("/v1/classify", json=document).json()["results"][0]["predictions"]
    assert kept
    assert all(p["probability"] >= 0.1 for p in kept)


def ways(name: str, first: object, second: object) -> list[dict[str, Any]]:
    """A parameter given twice: in the query, in the form, and in the query and a body."""
    number = {"data": base64.b64encode(PICTURE).decode()}
    part = (None, str(second))
    return [
        {"params": [(name, first), (name, second)], "content": PICTURE},
        {"files": [("files", PICTURE), (name, (None, str(first))), (name, part)]},
        {"params": {name: first}, "files": [(name, part), ("files", PICTURE)]},
        {"params": {name: first}, "json": {"images": [number], name: second}},
    ]


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize(("name", "first", "second"), [("top_k", 3, 4), ("threshold", 0, 0.5), ("model", "a", "b")])
def test_two_values_of_one_parameter(client: httpx.Client, name: str, first: object, second: object, way: int) -> None:
    """Neither wins: the parameter is named."""
    answer = client.post("/v1/classify", **ways(name, first, second)[way])
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert answer.json()["detail"].startswith(f"{name} is given more than once")


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize(("name", "value"), [("top_k", 3), ("threshold", 0), ("model", "ensemble_model")])
def test_one_value_given_twice(client: httpx.Client, name: str, value: object, way: int) -> None:
    """The same value again is fine, also where one is written 0 and the other 0.0."""
    assert client.post("/v1/classify", **ways(name, value, value)[way]).status_code == 200


@pytest.mark.parametrize("k", ["0", "-1", "11", "5.0", "many", "", "1e1", "99999999999999999999"])
def test_top_k_out_of_range(client: httpx.Client, k: str) -> None:
    """Only 1 to the number of classes."""
    answer = classify(client, PICTURE, top_k=k)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


@pytest.mark.parametrize("threshold", ["-0.1", "1.1", "nan", "inf", "x", ""])
def test_threshold_out_of_range(client: httpx.Client, threshold: str) -> None:
    """Only 0 to 1."""
    answer = classify(client, PICTURE, threshold=threshold)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", "1_0", "0x1", "5s", "5, 5", "1e999", ""])
def test_timeouts_that_are_none(client: httpx.Client, seconds: str) -> None:
    """A time that cannot be meant is refused."""
    answer = client.post("/v1/classify", content=PICTURE, headers={"x-request-timeout": seconds})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


def test_two_timeouts(client: httpx.Client) -> None:
    """Two that differ are refused; the same twice, in two spellings, is one."""
    for second, status in (("6", 422), ("5", 200), ("5.0", 200)):
        headers = [("x-request-timeout", "5"), ("x-request-timeout", second)]
        assert client.post("/v1/classify", content=PICTURE, headers=headers).status_code == status


def test_deadline_of_the_caller(own_client: httpx.Client, fake: FakeTriton) -> None:
    """The caller may ask for less time than the operator allows."""
    own_client.get("/readyz")
    fake.delay = 30
    answer = own_client.post("/v1/classify", content=PICTURE, headers={"x-request-timeout": "0.1"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


def test_no_usable_image(client: httpx.Client) -> None:
    """When nothing could be used the problem carries the same list of results."""
    answer = classify(client, b"junk", b"")
    problem = Problem.model_validate(answer.json(), strict=True)
    assert (answer.status_code, problem.code) == (422, "no_usable_image")
    assert [r.error.code for r in problem.results] == ["unsupported_image", "empty_image"]


def test_a_model_that_is_not_there(client: httpx.Client) -> None:
    """Only models that declare a task can be named; a step of an ensemble cannot."""
    for name in ("nope", "preprocessor", "../x"):
        answer = classify(client, PICTURE, model=name)
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
    assert classify(client, PICTURE, model="ensemble_model").status_code == 200


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (UpstreamUnavailable("gone", private="tcp://10.0.0.1 refused"), 503),
        (ModelNotReady("unloaded", private="in ensemble 'x'"), 503),
        (Overloaded("full", retry_after=2.5), 503),
        (BadUpstreamResponse("odd", private="Traceback"), 502),
    ],
)
def test_failures_of_triton(own_client: httpx.Client, fake: FakeTriton, failure: TidegateError, status: int) -> None:
    """Each has its number and code; 503 says when to come again; Triton's own words stay in the log."""
    assert classify(own_client, PICTURE).status_code == 200
    fake.failure = failure
    answer = classify(own_client, PICTURE)
    assert (answer.status_code, answer.json()["code"]) == (status, failure.code)
    assert ("retry-after" in answer.headers) == (status == 503)
    assert failure.private is None or failure.private not in answer.text
    fake.failure = None
    assert classify(own_client, PICTURE).status_code == 200


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.5])
def test_a_broken_row_costs_one_item(own_client: httpx.Client, fake: FakeTriton, value: float) -> None:
    """What is no probability is that image's own error, and counted as such; its neighbours keep their answers."""
    own_client.get("/readyz")
    other = encode(noise(8, 8, 1), "JPEG")
    alone = classify(own_client, other).json()["results"][0]["predictions"]
    before = metric(own_client, "tidegate_images_total", outcome="bad_upstream_response")
    fake.spoilt[PICTURE] = value
    answer = classify(own_client, other, PICTURE, other)
    first, broken, last = answer.json()["results"]
    assert first["predictions"] == last["predictions"] == alone
    assert (broken["status"], broken["error"]["code"]) == ("error", "bad_upstream_response")
    assert metric(own_client, "tidegate_images_total", outcome="bad_upstream_response") - before == 1
    ClassifyResponse.model_validate(answer.json(), strict=True)


def test_nothing_but_broken_rows_is_an_error_of_the_upstream(own_client: httpx.Client, fake: FakeTriton) -> None:
    """No image is ok and the model is to blame for one: 502, whatever the others are."""
    own_client.get("/readyz")
    fake.spoilt[PICTURE] = float("nan")
    for files in ([PICTURE], [PICTURE, b"junk"], [b"", PICTURE, PICTURE]):
        answer = classify(own_client, *files)
        assert (answer.status_code, answer.json()["code"]) == (502, "bad_upstream_response")
        assert "results" not in answer.json()


def test_images_are_counted_by_outcome(client: httpx.Client) -> None:
    """The metrics know how many images had which outcome, and how much was sent."""

    def counts() -> list[float]:
        return [
            metric(client, "tidegate_images_total", outcome="ok"),
            metric(client, "tidegate_images_total", outcome="unsupported_image"),
            metric(client, "tidegate_payload_bytes_total"),
            metric(client, "tidegate_batch_images_sum"),
            metric(client, "tidegate_batch_images_count"),
            metric(client, "tidegate_inference_seconds_count"),
        ]

    before = counts()
    classify(client, PICTURE, b"junk", PICTURE)
    assert [a - b for a, b in zip(counts(), before, strict=True)] == [2, 1, 2 * len(PICTURE), 2, 1, 1]
    assert metric(client, "tidegate_in_flight_images") == 0
