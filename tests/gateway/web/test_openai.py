"""POST /v1/embeddings and /v1/moderations, asked by OpenAI's own client, unchanged."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise

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
        ("embeddings", {"input": "text", "model": "embedding_ensemble"}, 422, "input[0] is not one"),
        ("embeddings", {"input": [URI, "text"], "model": "embedding_ensemble"}, 422, "input[1] is not one"),
        ("embeddings", {"input": ["", "b"], "model": "text_embedder"}, 422, "input[0] cannot be used (empty_text)"),
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
        ("moderations", {"input": [IMAGE, {"type": "text", "text": "a"}]}, 422, "input[1] is not one"),
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
