"""What the builder publishes, served by a real Triton that watches the repository."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from build_engines import publish
from build_engines.build import Order, build
from build_engines.configs import Entry
from gateway.settings import Settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.servers import ROOT, running_gateway, wait_for

CUP = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
NAME = "lite0"


def quiet(_: str) -> None:
    """Says nothing."""


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Order:
    """EfficientNet-Lite0 in FP32 for onnxruntime, under a name of its own."""
    folder = tmp_path_factory.mktemp("built")
    return Order(
        repository=folder / "repository", model=NAME, target="onnxruntime", precision="fp32", work=folder / "work"
    )


@pytest.fixture(scope="module")
def client(order: Order) -> Iterator[httpx.Client]:
    """A gateway whose default model it is, and a Triton; both look for changes every second."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    build(order, quiet)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("gateway.triton.discovery.REDISCOVER_S", 1.0)
    server = LocalTriton(
        [order.repository],
        ports=Ports(*free_ports(3)),
        arguments=["--model-control-mode=poll", "--repository-poll-secs=1"],
    )
    with server:
        server.wait_ready()
        settings = Settings(triton_url=server.url, default_model=NAME, probe_interval_s=1)
        with running_gateway(settings) as client:
            wait_for(client, "/readyz")
            yield client
    monkeypatch.undo()


def served_version(client: httpx.Client) -> str:
    """Of the network, as its certificate has it."""
    return str(client.get(f"/v1/models/{NAME}").json()["certificate"]["version"])


def test_a_built_model_is_served_with_its_certificate(client: httpx.Client, order: Order) -> None:
    """Labels, answers and certificate come through; the precision is what the runtime computes in."""
    answer = client.post("/v1/classify", content=CUP).json()
    assert answer["results"][0]["predictions"][0]["label"] == "espresso"
    model = client.get(f"/v1/models/{NAME}").json()
    assert model["certificate"]["source"]["name"] == "efficientnet_lite0"
    assert model["certificate"]["layers"] == {"fp32": 50}
    assert model["certificate"]["target"] == "onnxruntime"
    assert str(order.repository.parent) not in str(model)


def test_versions_change_under_load_without_a_lost_answer(client: httpx.Client, order: Order) -> None:
    """INT8 with other labels is promoted and taken back while callers ask: each answer has its own engine's labels."""
    stop, answers = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            answers.append(client.post("/v1/classify", content=CUP))

    entry = Entry(order.repository, NAME)
    caller = threading.Thread(target=ask)
    caller.start()
    try:
        labels = order.repository.parent / "labels.txt"
        names = (ROOT / "model_repository" / "classifier" / "labels.txt").read_text().splitlines()
        labels.write_text("".join(f"{name}, in INT8\n" for name in names))
        build(replace(order, precision="int8", labels=labels), quiet)
        _wait_for_version(client, "2")
        assert publish.rollback(entry, "cpu") == "1"
        _wait_for_version(client, "1")
    finally:
        stop.set()
        caller.join()
    assert len(answers) > 10
    assert {answer.status_code for answer in answers} == {200}
    found = set()
    for answer in map(httpx.Response.json, answers):
        best = answer["results"][0]["predictions"][0]
        found.add((answer["model"]["version"], best["label"], round(best["probability"], 3)))
    assert len(found) == 2
    assert {(version, label) for version, label, _ in found} == {("1", "espresso"), ("2", "espresso, in INT8")}


def _wait_for_version(client: httpx.Client, version: str) -> None:
    deadline = time.monotonic() + 60
    while served_version(client) != version:
        assert time.monotonic() < deadline
        time.sleep(0.1)
