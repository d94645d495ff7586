"""Versions side by side, from the builder's commands to the caller's answer, on a real Triton."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from build_engines import publish
from build_engines.configs import DEFAULT_MODEL, Entry
from gateway.settings import Settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.build_engines.test_served_versions import COLOURS, COULEURS, stage, stage_text
from tests.pictures import GREEN, encode, solid
from tests.servers import metric, running_gateway

PICTURE = encode(solid(GREEN))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway in front of a classifier with a shadow that names colours otherwise, and texts whose candidate answers
    all requests."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    repository: Path = tmp_path_factory.mktemp("repository")
    classifier, texts = Entry(repository, DEFAULT_MODEL), Entry(repository, "text_classifier", "text_classify")
    publish.promote(classifier, stage(classifier, COLOURS))
    publish.beside(classifier, stage(classifier, COULEURS), shadow=1)
    publish.promote(texts, stage_text(texts, "short", "long"))
    publish.beside(texts, stage_text(texts, "short", "lengthy"), weight=1)
    with LocalTriton([repository], ports=Ports(*free_ports(3))) as triton:
        triton.wait_ready()
        with running_gateway(Settings(triton_url=triton.url)) as client:
            yield client


def label(client: httpx.Client, **parameters: str) -> tuple[str, str]:
    """The version that answered, and its best label for a green picture."""
    answer = client.post("/v1/classify", content=PICTURE, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()["model"]["version"], answer.json()["results"][0]["predictions"][0]["label"]


def test_a_caller_may_name_a_version(client: httpx.Client) -> None:
    """Each answers with its own labels and number; one that takes no traffic answers nobody else."""
    assert [label(client) for _ in range(5)] == [("1", "green")] * 5
    assert label(client, version="2") == ("2", "vert")
    assert label(client, version="1") == ("1", "green")
    assert client.post("/v1/classify?version=3", content=PICTURE).json()["code"] == "model_not_found"
    (listed,) = (m for m in client.get("/v1/models").json()["data"] if m["id"] == DEFAULT_MODEL)
    assert listed["versions"] == [
        {"version": "1", "weight": 1.0, "shadow": 0.0},
        {"version": "2", "weight": 0.0, "shadow": 1.0},
    ]


def test_what_a_shadow_says_is_counted(client: httpx.Client) -> None:
    """It sees the same pictures, and names them otherwise: each is a disagreement, and callers get the main answer."""
    before = metric(client, "tidegate_shadow_agreement_total", model=DEFAULT_MODEL, outcome="differ")
    for _ in range(3):
        assert label(client) == ("1", "green")
        deadline = time.monotonic() + 20
        while metric(client, "tidegate_shadow_agreement_total", model=DEFAULT_MODEL, outcome="differ") == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        before += 1


def test_a_candidate_with_all_the_weight_answers_all(client: httpx.Client) -> None:
    """Unless the main version is named; a single model has candidates as an ensemble has."""

    def best(**parameters: str) -> tuple[str, str]:
        answer = client.post("/v1/text/classify", json={"texts": ["a long enough text"], **parameters}).json()
        return answer["model"]["version"], answer["results"][0]["predictions"][0]["label"]

    assert [best() for _ in range(5)] == [("2", "lengthy")] * 5
    assert best(version="1") == ("1", "long")
