"""POST /v1/embeddings and /v1/moderations, asked by OpenAI's own client, unchanged."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise
from tests.servers import running_gateway

PICTURE = encode(noise(8, 8))
URI = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
ELSEWHERE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
IMAGE: Any = {"type": "image_url", "image_url": {"url": URI}}


@pytest.fixture(scope="module")
def theirs(client: httpx.Client) -> Iterator[openai.OpenAI]:
    """OpenAI's client, which is told nothing but where we are."""
    with openai.OpenAI(base_url=f"{client.base_url}/v1/", api_key="tg_none", max_retries=0) as library:
        yield library


def test_texts(theirs: openai.OpenAI) -> None:
    """The client asks for base64 by itself, and gets the numbers that the model gave, in order."""
    texts = ["Shares rose", "A probe, in orbit", "é"]
    answer = theirs.embeddings.create(model="text_embedder", input=texts)
    assert [each.index for each in answer.data] == [0, 1, 2]
    for text, each in zip(texts, answer.data, strict=True):
        np.testing.assert_array_equal(
            np.asarray(each.embedding, np.float32), FakeTriton().probabilities(text.encode())[:6]
        )
    assert answer.usage.total_tokens == 0


def test_images(theirs: openai.OpenAI) -> None:
    """A `data:` URI is a picture; floats and base64 are the same numbers."""
    floats, packed = (
        theirs.embeddings.create(model="embedding_ensemble", input=[URI, URI], encoding_format=each)
        for each in ("float", "base64")
    )
    expected = FakeTriton().probabilities(PICTURE)[:6]
    for answer in (floats, packed):
        for each in answer.data:
            found: Any = each.embedding
            if isinstance(found, str):  # the client hands over what was asked for by name, as it came
                found = np.frombuffer(base64.b64decode(found), "<f4")
            np.testing.assert_array_equal(np.asarray(found, np.float32), expected)


def test_moderations_of_a_picture(theirs: openai.OpenAI) -> None:
    """The model's label counts as its category; categories that nobody judged say so."""
    answer = theirs.moderations.create(model="open_nsfw", input=[IMAGE])
    (result,) = answer.results
    probability = float(FakeTriton().probabilities(PICTURE)[1])
    assert result.category_scores.sexual == pytest.approx(probability)
    assert result.categories.sexual == result.flagged == (probability >= 0.1)
    assert result.category_applied_input_types.sexual == ["image"]
    assert result.categories.harassment is False
    assert result.category_applied_input_types.harassment == []
    assert answer.id.startswith("modr-")


def test_the_default_moderator_answers(client: httpx.Client) -> None:
    """Without a model's name; several parts are one result, with the highest score of each category."""
    other = f"data:image/png;base64,{base64.b64encode(encode(noise(8, 8, 3))).decode()}"
    parts = [IMAGE, {"type": "image_url", "image_url": {"url": other}}]
    alone = [client.post("/v1/moderations", json={"input": [part]}).json()["results"][0] for part in parts]
    (together,) = client.post("/v1/moderations", json={"input": parts}).json()["results"]
    scores = [each["category_scores"]["sexual"] for each in alone]
    assert together["category_scores"]["sexual"] == max(scores) > min(scores)


@pytest.mark.parametrize(
    ("route", "document", "status", "words"),
    [
        ("embeddings", {"input": "text", "model": "embedding_ensemble"}, 422, "input[0] is a text"),
        ("embeddings", {"input": [URI, "text"], "model": "embedding_ensemble"}, 422, "input[1] is a text"),
        ("embeddings", {"input": ["", "b"], "model": "text_embedder"}, 422, "input[0] cannot be used (empty_text)"),
        ("embeddings", {"input": [URI], "model": "text_embedder"}, 422, "input[0] is an image"),
        ("embeddings", {"input": ["a" * 30_000] * 40, "model": "text_embedder"}, 413, "bytes together"),
        ("embeddings", {"input": "unread", "model": "text_embedder"}, 422, "(text_too_large)"),
        ("embeddings", {"input": "unknown", "model": "text_embedder"}, 422, "(unknown_text)"),
        ("embeddings", {"input": "data:image/png;base64,????"}, 422, "(invalid_base64)"),
        ("embeddings", {"input": [1, 2, 3], "model": "text_embedder"}, 422, "token numbers"),
        ("embeddings", {"input": "a", "encoding_format": "nonsense"}, 422, "encoding_format must be"),
        ("embeddings", {"input": "a", "dimensions": 5}, 422, "dimensions must be 6"),
        ("embeddings", {"input": "a", "model": "text_classifier"}, 422, "does not embed"),
        ("embeddings", {"input": "a", "model": "text-embedding-3-small"}, 404, "no model of this name"),
        ("embeddings", {"input": []}, 422, "at least one"),
        ("embeddings", {"model": "text_embedder"}, 422, "input must be"),
        ("embeddings", {"input": ["a"] * 2049}, 413, "2048"),
        ("moderations", {"input": "text"}, 422, "takes images"),
        ("moderations", {"input": [IMAGE, {"type": "text", "text": "a"}]}, 422, "input[1] is a text"),
        ("moderations", {"input": [IMAGE, "text"]}, 422, "input[1] must be a part"),
        ("moderations", {"input": [{"type": "video"}]}, 422, "input[0] must be"),
        ("moderations", {"input": [{**IMAGE, "detail": "low"}]}, 422, "input[0] must be"),
        ("moderations", {"input": [IMAGE], "model": "ensemble_model"}, 422, "does not moderate"),
        (
            "moderations",
            {"input": [ELSEWHERE]},
            422,
            "url_forbidden",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_asked(
    client: httpx.Client, route: str, document: dict[str, Any], status: int, words: str
) -> None:
    """The sentence names the place."""
    answer = client.post(f"/v1/{route}", json=document)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


def test_their_errors_hold_ours(theirs: openai.OpenAI) -> None:
    """A refusal is an exception of their kind, with our code and sentence in it."""
    with pytest.raises(openai.UnprocessableEntityError) as error:
        theirs.embeddings.create(model="text_embedder", input="", encoding_format="float")
    assert error.value.code == "invalid_parameter"
    assert "empty_text" in error.value.body["detail"]  # type: ignore[index]  # our document, as it came
    with pytest.raises(openai.NotFoundError):
        theirs.moderations.create(model="omni-moderation-latest", input="text")


def test_a_text_may_look_like_an_address(theirs: openai.OpenAI) -> None:
    """Only what really is a `data:` URI of base64 is taken for an image."""
    answer = theirs.embeddings.create(model="text_embedder", input="data: shares rose, base64 fell")
    assert len(answer.data) == 1


def moderating(**labels: tuple[str, float]) -> FakeTriton:
    """A moderator of texts; each label with its category and threshold."""
    fake = FakeTriton(classes=3)
    judged = {label.replace("_", " "): {"category": c, "threshold": t} for label, (c, t) in labels.items()}
    fake.serve("moderator", "text_classify", moderation=json.dumps(judged))
    return fake


def judged(client: httpx.Client, *texts: str) -> list[dict[str, Any]]:
    answer = client.post("/v1/moderations", json={"input": list(texts), "model": "moderator"})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


@pytest.mark.parametrize("order", [1, -1])
def test_each_label_has_its_own_threshold(order: int) -> None:
    """Two labels of one category: it is flagged as soon as one of them reaches its own, whichever stands first."""
    labels = {"class_0": ("hate", 0.01), "class_1": ("hate", 1.0), "class_2": ("violence", 1.0)}
    fake = moderating(**dict(list(labels.items())[::order]))
    with running_gateway(Settings(), fake) as client:
        (result,) = judged(client, "some text")
    first, second, third = fake.probabilities(b"some text").tolist()
    assert (result["flagged"], result["categories"]["hate"], result["categories"]["violence"]) == (True, True, False)
    assert result["category_scores"]["hate"] == pytest.approx(first + second)
    assert result["category_scores"]["violence"] == pytest.approx(third)


def test_an_exchanged_version_is_judged_by_its_own_thresholds() -> None:
    """Triton has another version, of other categories, since the model was looked up: none of its scores is lost."""
    fake = moderating(class_0=("violence", 1.0))
    with running_gateway(Settings(), fake) as client:
        client.get("/readyz")
        other = {f"class {k} of version 2": {"category": "hate", "threshold": 0.0} for k in range(3)}
        fake.parameters["moderator"]["moderation"] = json.dumps(other)
        fake.version = "2"
        answer = client.post("/v1/moderations", json={"input": "some text", "model": "moderator"}).json()
    assert answer["version"] == "2"
    (result,) = answer["results"]
    assert result["categories"]["hate"]
    assert result["category_applied_input_types"]["violence"] == []


def test_an_exchanged_version_that_does_not_moderate_passes_nothing() -> None:
    """Triton has one since the model was looked up: 503, and no result in which nobody judged anything."""
    fake = moderating(class_0=("violence", 1.0))
    with running_gateway(Settings(), fake) as client:
        client.get("/readyz")
        del fake.parameters["moderator"]["moderation"]
        fake.version = "2"
        answer = client.post("/v1/moderations", json={"input": "some text", "model": "moderator"})
    assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")


@pytest.mark.parametrize(("text", "code"), [("unknown", "unknown_text"), ("unread", "text_too_large")])
def test_what_nobody_could_judge_is_not_passed(text: str, code: str) -> None:
    """A text without one known word, or longer than the model reads: no score, but an error."""
    with running_gateway(Settings(), moderating(class_0=("hate", 0.5))) as client:
        answer = client.post("/v1/moderations", json={"input": ["fine", text], "model": "moderator"})
        assert answer.status_code == 422
        assert f"input[1] cannot be used ({code})" in answer.json()["detail"]
