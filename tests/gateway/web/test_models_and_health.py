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
    (model,) = listed["data"]
    assert model["id"] == "ensemble_model"
    assert (model["task"], model["classes"], model["max_batch"], model["ready"]) == ("classify", 10, 8, True)
    detail = client.get("/v1/models/ensemble_model").json()
    assert detail["labels"] == [f"class {i}" for i in range(10)]
    assert client.get("/v1/models/nope").json()["code"] == "model_not_found"


def test_a_model_made_by_hand_has_no_certificate(client: httpx.Client) -> None:
    """It is served, and says so: null, not a missing key."""
    (listed,) = client.get("/v1/models").json()["data"]
    assert (listed["certified"], listed["precision"], listed["weights"]) == (False, None, None)
    assert client.get("/v1/models/ensemble_model").json()["certificate"] is None


def test_the_certificate_is_shown_as_the_builder_wrote_it(own_client: httpx.Client, fake: FakeTriton) -> None:
    """One model shows the whole document, the list says that there is one and what it is about."""
    certificate = {
        "version": "1",
        "precision": "int8",
        "source": {"name": "timm/resnet50", "weights": "file", "sha256": "12" * 32},
        "preprocess": {"sha256": "ab" * 32},
        "measured": {"images_per_s": 1234.5, "notes": ["a", None, True], "device": "größer 4", "large": 2**70},
    }
    fake.parameters["classifier"]["certificate"] = json.dumps(certificate)
    fake.parameters["preprocessor"]["preprocess_sha256"] = "ab" * 32
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
        {"version": "1", "source": {"weights": "file"}, "preprocess": {"sha256": "ab" * 32}}
    )
    fake.parameters["preprocessor"]["preprocess_sha256"] = "ab" * 32
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
