"""Models, liveness, readiness, the page, the documents."""

from __future__ import annotations

import json
import re
import time

import httpx
import pytest

from gateway.errors import UpstreamUnavailable
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web import health
from tests.pictures import encode, noise
from tests.servers import running_gateway


def test_models(client: httpx.Client) -> None:
    """The list shows what can be named; one model shows its labels in order."""
    listed = client.get("/v1/models").json()
    assert listed["unavailable"] == []
    models = {model["id"]: model for model in listed["data"]}
    model = models["ensemble_model"]
    assert (model["task"], model["classes"], model["max_batch"], model["ready"]) == ("classify", 10, 8, True)
    assert (models["embedding_ensemble"]["task"], models["embedding_ensemble"]["dim"]) == ("embed", 6)
    assert (models["text_classifier"]["task"], models["text_classifier"]["dim"]) == ("text_classify", 0)
    assert (models["text_embedder"]["normalised"], models["embedding_ensemble"]["normalised"]) == (True, False)
    assert (models["open_nsfw"]["moderates"], model["moderates"]) == (["sexual"], [])
    detail = client.get("/v1/models/ensemble_model").json()
    assert detail["labels"] == [f"class {i}" for i in range(10)]
    assert client.get("/v1/models/nope").json()["code"] == "model_not_found"


def test_a_model_made_by_hand_has_no_certificate(client: httpx.Client) -> None:
    """It is served, and says so: null, not a missing key."""
    listed = client.get("/v1/models/ensemble_model").json()
    assert (listed["certified"], listed["precision"], listed["weights"]) == (False, None, None)
    assert client.get("/v1/models/ensemble_model").json()["certificate"] is None


def test_versions_are_listed_with_their_share(fake: FakeTriton) -> None:
    """A candidate is a version of its model, can be looked at, and answers who names it."""
    fake.serve("ensemble_model.v2", "classify", version_of="ensemble_model", weight="0.25", shadow="0.5")
    fake.versions["ensemble_model.v2"] = "2"
    with running_gateway(Settings(), fake) as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["version"]) == ("ensemble_model", "1")
        assert model["versions"] == [
            {"version": "1", "weight": 0.75, "shadow": 0.0},
            {"version": "2", "weight": 0.25, "shadow": 0.5},
        ]
        detail = client.get("/v1/models/ensemble_model?version=2").json()
        assert (detail["version"], detail["labels"][0]) == ("2", "class 0 of version 2")
        assert detail["versions"] == model["versions"]
        assert client.get("/v1/models/ensemble_model?version=").json()["version"] == "1"
        for version in ("1", "2"):
            answer = client.post("/v1/classify", params={"version": version}, content=encode(noise(8, 8)))
            assert answer.json()["model"] == {"name": "ensemble_model", "version": version}
        answer = client.post("/v1/classify?version=3", content=encode(noise(8, 8)))
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


def test_the_certificate_is_shown_as_the_builder_wrote_it(own_client: httpx.Client, fake: FakeTriton) -> None:
    """One model shows the whole document, the list says that there is one and what it is about."""
    certificate = {
        "version": "1",
        "precision": "int8",
        "source": {"name": "timm/resnet50", "weights": "file", "sha256": "12" * 32},
        "preprocess": {"pixels_sha256": "ab" * 32},
        "measured": {"images_per_s": 1234.5, "notes": ["a", None, True], "device": "größer 4", "large": 2**70},
    }
    fake.parameters["classifier"]["certificate"] = json.dumps(certificate)
    fake.parameters["preprocessor"]["pixels_sha256"] = "ab" * 32
    fake.failure = UpstreamUnavailable("restarts with the new model")
    time.sleep(1.05)  # a probe's result is good for one second
    assert own_client.get("/readyz").status_code == 503
    fake.failure = None
    time.sleep(1.05)
    assert own_client.get("/readyz").status_code == 200
    assert own_client.get("/v1/models/ensemble_model").json()["certificate"] == certificate
    (listed,) = own_client.get("/v1/models").json()["data"]
    assert (listed["certified"], listed["precision"], listed["weights"]) == (True, "int8", "file")
    assert "certificate" not in listed


def test_readiness_follows_triton_and_liveness_does_not(own_client: httpx.Client, fake: FakeTriton) -> None:
    """A Triton that fails its probe makes the gateway unready, not dead; its return is noticed."""
    assert own_client.get("/readyz").status_code == 200
    fake.failure = UpstreamUnavailable("gone")
    time.sleep(1.05)  # a probe's result is good for one second
    answer = own_client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "upstream_unavailable")
    assert own_client.get("/livez").status_code == 200
    fake.failure = None
    time.sleep(1.05)
    assert own_client.get("/readyz").status_code == 200


def test_what_does_not_answer_is_not_ready(fake: FakeTriton, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon enough for whoever asks, however many questions a probe has to wait for."""
    monkeypatch.setattr(health, "READY_S", 0.2)
    with running_gateway(Settings(), fake) as client:
        assert client.get("/readyz").status_code == 200
        fake.delay = 60
        time.sleep(1.05)  # a probe's result is good for one second
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "upstream_unavailable")


def test_a_certified_model_can_be_cached(fake: FakeTriton) -> None:
    """With a certificate as the builder writes it: the second time Triton is not asked."""
    fake.parameters["classifier"]["certificate"] = json.dumps(
        {"version": "1", "source": {"weights": "file"}, "preprocess": {"pixels_sha256": "ab" * 32}}
    )
    fake.parameters["preprocessor"]["pixels_sha256"] = "ab" * 32
    picture = encode(noise(8, 8), "JPEG")
    with running_gateway(Settings(cache_bytes=10**6), fake) as client:
        client.get("/readyz")
        first = client.post("/v1/classify", content=picture).json()
        asked = len(fake.asked)
        assert client.post("/v1/classify", content=picture).json()["results"] == first["results"]
        assert len(fake.asked) == asked


def test_nan_is_not_ready(own_client: httpx.Client, fake: FakeTriton) -> None:
    """A model that answers with garbage is not ready, whatever Triton says."""
    own_client.get("/readyz")
    fake.nan = True
    time.sleep(1.05)
    assert own_client.get("/readyz").json()["code"] == "model_not_ready"


def test_the_page_asks_no_other_host(client: httpx.Client) -> None:
    """HTML, style and script are ours, under a policy that allows nothing else."""
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert all(link.startswith("/") for link in links)
    for link in links:
        assert client.get(link).status_code == 200
