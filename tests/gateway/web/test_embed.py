"""POST /v1/embed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise
from tests.servers import running_gateway

PICTURES = [encode(noise(8, 8, seed)) for seed in range(3)]


@pytest.fixture
def embedding(fake: FakeTriton) -> Iterator[httpx.Client]:
    """A gateway in front of `fake`, which embeds and which the test may break."""
    fake.serve("embedding_ensemble", "embed")
    with running_gateway(Settings(), fake) as client:
        client.get("/readyz")
        yield client


def embed(client: httpx.Client, *files: bytes, **parameters: str) -> dict[str, Any]:
    answer = client.post("/v1/embed", files=[("files", file) for file in files], params=parameters)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_every_image_has_its_own_embedding(client: httpx.Client) -> None:
    """In the order sent, each as alone; one that is no picture is an error in its place, and `dim` is the length."""
    answer = embed(client, PICTURES[0], b"junk", PICTURES[1])
    assert answer["model"] == {"name": "embedding_ensemble", "version": "1"}
    first, bad, second = answer["results"]
    assert (first["status"], bad["error"]["code"], second["index"]) == ("ok", "unsupported_image", 2)
    for result, file in ((first, PICTURES[0]), (second, PICTURES[1])):
        assert len(result["embedding"]) == answer["dim"] == 6
        np.testing.assert_array_equal(np.float32(result["embedding"]), FakeTriton().probabilities(file)[:6])


def test_all_three_forms_agree(client: httpx.Client) -> None:
    """The same bytes as a form, as JSON and as the body; parameters in each."""
    form = embed(client, PICTURES[0], normalize="true")
    data = base64.b64encode(PICTURES[0]).decode()
    document = client.post("/v1/embed", json={"images": [{"data": data}], "normalize": True}).json()
    bare = client.post("/v1/embed?normalize=true", content=PICTURES[0]).json()
    assert form["results"][0]["embedding"] == document["results"][0]["embedding"] == bare["results"][0]["embedding"]


def test_base64_holds_the_same_numbers(client: httpx.Client) -> None:
    """FP32, little-endian, to the last bit."""
    numbers = embed(client, PICTURES[0])["results"][0]["embedding"]
    text = embed(client, PICTURES[0], encoding_format="base64")["results"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == numbers


def test_unit_length_on_request(client: httpx.Client) -> None:
    """The direction stays."""
    raw = np.array(embed(client, PICTURES[0])["results"][0]["embedding"])
    unit = np.array(embed(client, PICTURES[0], normalize="1")["results"][0]["embedding"])
    assert abs(np.linalg.norm(unit) - 1) < 1e-6
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw), rtol=1e-5)


def test_labels_from_the_same_picture(embedding: httpx.Client, fake: FakeTriton) -> None:
    """With `classify` one call to Triton gives both; `top_k` is for the labels."""
    fake.asked.clear()
    answer = embed(embedding, *PICTURES, classify="true", top_k="2")
    assert sum(rows for rows, _ in fake.asked) == 3
    for result, file in zip(answer["results"], PICTURES, strict=True):
        assert [p["probability"] for p in result["predictions"]] == sorted(fake.probabilities(file).tolist())[:-3:-1]
        assert len(result["embedding"]) == 6


def test_a_candidate_without_labels_gets_no_question_for_them(fake: FakeTriton) -> None:
    """It answers all questions for features, by its weight; those for labels as well go to the main version."""
    fake.serve("embedding_ensemble", "embed")
    fake.serve("embedding_ensemble.v2", "embed", version_of="embedding_ensemble", weight="1", only="EMBEDDING")
    fake.versions["embedding_ensemble.v2"] = "2"
    with running_gateway(Settings(), fake) as client:
        assert embed(client, PICTURES[0])["model"]["version"] == "2"
        assert embed(client, PICTURES[0], classify="true")["model"]["version"] == "1"
        answer = client.post("/v1/embed?classify=true&version=2", content=PICTURES[0])
        assert "only embeds" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"normalize": "perhaps"}, "normalize must be true or false"),
        ({"encoding_format": "hex"}, "encoding_format must be float or base64"),
        ({"top_k": "3"}, "only with classify"),
        ({"classify": "true", "top_k": "99"}, "top_k must be a whole number from 1 to 10"),
        ({"model": "ensemble_model"}, "ask it at POST /v1/classify"),
    ],
)
def test_a_parameter_that_cannot_be(client: httpx.Client, parameters: dict[str, str], words: str) -> None:
    """The sentence says what would do."""
    answer = client.post("/v1/embed", content=PICTURES[0], params=parameters)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")
    assert words in answer.json()["detail"]


def test_a_model_of_features_is_not_asked_for_labels(client: httpx.Client) -> None:
    """`/v1/classify` says where to go, instead of answering with another model."""
    answer = client.post("/v1/classify?model=embedding_ensemble", content=PICTURES[0])
    assert answer.status_code == 422
    assert "POST /v1/embed" in answer.json()["detail"]


def test_nothing_usable(client: httpx.Client) -> None:
    """422, with the reason of each."""
    answer = client.post("/v1/embed", files=[("files", b"junk"), ("files", b"")])
    assert (answer.status_code, answer.json()["code"]) == (422, "no_usable_image")
    assert [r["error"]["code"] for r in answer.json()["results"]] == ["unsupported_image", "empty_image"]


def test_no_numbers_are_no_features(embedding: httpx.Client, fake: FakeTriton) -> None:
    """NaN is the upstream's fault, and never sent on."""
    fake.nan = True
    answer = embedding.post("/v1/embed", content=PICTURES[0])
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_upstream_response")


def test_an_exchanged_version_of_another_length_is_no_answer(embedding: httpx.Client, fake: FakeTriton) -> None:
    """`dim`, and what the caller does with it, would be wrong: 503 until the gateway knows the new one."""
    fake.version, fake.dim = "2", 4
    answer = embedding.post("/v1/embed", content=PICTURES[0])
    assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
    answer = embedding.post("/v1/embed", content=PICTURES[0])
    assert (answer.json()["dim"], len(answer.json()["results"][0]["embedding"])) == (4, 4)
