"""POST /v1/text/classify."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.servers import metric, running_gateway


def classify(client: httpx.Client, *texts: str, **parameters: object) -> list[dict[str, Any]]:
    answer = client.post("/v1/text/classify", json={"texts": texts, **parameters})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def test_every_text_has_its_own_answer(client: httpx.Client) -> None:
    """More than one batch of them, in the order sent, each as alone."""
    texts = [f"text number {i}" for i in range(20)]
    results = classify(client, *texts, top_k=1)
    assert [result["index"] for result in results] == list(range(20))
    for text, result in zip(texts, results, strict=True):
        probabilities = FakeTriton().probabilities(text.encode())
        (best,) = result["predictions"]
        assert (best["class_id"], best["probability"]) == (int(probabilities.argmax()), float(probabilities.max()))
        assert result["known_words"] == 1


def test_an_answer_says_how_much_it_had_to_go_by(client: httpx.Client) -> None:
    """A text without a known word gets what is usual, and says so."""
    (result,) = classify(client, "unknown")
    assert result["known_words"] == 0


@pytest.mark.parametrize("text", ["🙂", "ข่าวกีฬา", "a\0b", "\\ \" '", "é", "e\u0301", "\ud800", "x" * 1000])
def test_any_text_is_answered(client: httpx.Client, text: str) -> None:
    """Emoji, scripts without spaces, zero bytes, quotes, half a surrogate pair."""
    answer = client.post("/v1/text/classify", content=b'{"texts": [' + _json(text) + b"]}")
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        assert answer.json()["code"] == "malformed_request"
        assert "\ud800" in text


def _json(text: str) -> bytes:
    import json

    return json.dumps(text).encode()


def test_a_text_that_was_not_read_to_its_end_has_no_answer(client: httpx.Client) -> None:
    """The model says so, and the caller is told, instead of getting the label of a part."""
    first, second = classify(client, "unread", "read")
    assert (first["error"]["code"], second["status"]) == ("text_too_large", "ok")


def test_an_empty_text_costs_one_item(client: httpx.Client) -> None:
    """Its neighbours are answered; alone it is 422."""
    results = classify(client, "good", "", " \n\t", "better")
    assert [result["status"] for result in results] == ["ok", "error", "error", "ok"]
    assert results[1]["error"]["code"] == "empty_text"
    answer = client.post("/v1/text/classify", json={"texts": [""]})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_usable_text")
    assert answer.json()["results"][0]["error"]["code"] == "empty_text"


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        ({}, 422, "missing_text"),
        ({"texts": []}, 422, "missing_text"),
        ({"texts": "one"}, 422, "invalid_parameter"),
        ({"texts": [1]}, 422, "invalid_parameter"),
        ({"text": "one"}, 422, "invalid_parameter"),
        ({"texts": ["a"], "top_k": 99}, 422, "invalid_parameter"),
        ({"texts": ["a"], "model": "ensemble_model"}, 422, "invalid_parameter"),
        ({"texts": ["a"], "model": "nobody"}, 404, "model_not_found"),
        ({"texts": ["a"], "version": "7"}, 404, "model_not_found"),
        ({"texts": ["a"] * 2049}, 413, "too_many_texts"),
        ({"texts": ["a"] * 100_000}, 413, "too_many_texts"),
        ({"texts": ["a" * 30_000] * 40}, 413, "too_many_texts"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_asked(client: httpx.Client, document: dict[str, Any], status: int, code: str) -> None:
    """Each refusal has its status and code."""
    answer = client.post("/v1/text/classify", json=document)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_commas_inside_of_a_text_are_no_elements(client: httpx.Client) -> None:
    """A long text with many commas, and quotes, is one text."""
    (result,) = classify(client, 'one, "two", ' * 2000 + "\\")
    assert result["status"] == "ok"


def test_limits_are_settings_and_outcomes_are_counted() -> None:
    """One text that is too long is an error in its place; the counter has a series for each outcome."""
    fake = FakeTriton()
    fake.serve("text_classifier", "text_classify")
    with running_gateway(Settings(max_text_bytes=10, max_texts=3), fake) as client:
        client.get("/readyz")
        before = metric(client, "tidegate_texts_total", model="text_classifier", outcome="text_too_large")
        results = classify(client, "short", "ééééé", "éééééé")
        assert [result["status"] for result in results] == ["ok", "ok", "error"]
        assert results[2]["error"]["code"] == "text_too_large"
        assert client.post("/v1/text/classify", json={"texts": ["a"] * 4}).status_code == 413
        assert metric(client, "tidegate_texts_total", model="text_classifier", outcome="text_too_large") == before + 1
