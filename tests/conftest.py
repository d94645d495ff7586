"""Servers that are started once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from build_engines import build_default
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.probe import write_probe_repository
from tests.servers import ROOT, running_gateway


@pytest.fixture
def fake() -> FakeTriton:
    """A Triton in memory: ten classes, batches of eight."""
    return FakeTriton()


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    """A client of a gateway with default settings in front of a healthy Triton in memory."""
    with running_gateway(Settings(), of_every_task()) as client:
        client.get("/readyz")
        yield client


def of_every_task() -> FakeTriton:
    """A Triton in memory with the default model of every route."""
    fake = FakeTriton()
    fake.serve("embedding_ensemble", "embed")
    fake.serve("text_classifier", "text_classify")
    fake.serve("text_embedder", "text_embed", normalised="l2")
    fake.serve("open_nsfw", "classify", moderation='{"class 1": {"category": "sexual", "threshold": 0.1}}')
    return fake


@pytest.fixture
def own_client(fake: FakeTriton) -> Iterator[httpx.Client]:
    """The same in front of `fake`, which the test may break."""
    with running_gateway(Settings(), fake) as client:
        yield client


@pytest.fixture(scope="session")
def probe_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped preprocessor in front of the probe classifier, whose every output is known exactly."""
    return write_probe_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def triton(probe_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    """A real Triton with the shipped models and the probe."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    build_default(ROOT / "model_repository", say=lambda line: None)
    http, grpc, metrics = free_ports(3)
    server = LocalTriton(
        [ROOT / "model_repository", probe_repository],
        ports=Ports(http, grpc, metrics),
        log_file=tmp_path_factory.mktemp("triton") / "triton.log",
    )
    with server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def gate(triton: LocalTriton) -> Iterator[httpx.Client]:
    """A client of a gateway in front of the real Triton."""
    with running_gateway(Settings(triton_url=triton.url), None) as client:
        yield client
