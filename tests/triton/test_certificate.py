"""Certificates on a real Triton: what the builder writes into the configurations reaches callers, or keeps them out."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from build_engines.preprocessing import Preprocessing
from gateway.settings import Settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.pictures import RED, encode, solid
from tests.servers import ROOT, running_gateway

MODELS = ROOT / "tests" / "triton" / "models"
RECIPE_FILE = MODELS / "probe" / "preprocess.json"
RECIPE = hashlib.sha256(RECIPE_FILE.read_bytes()).hexdigest()
PIXELS = Preprocessing.read(RECIPE_FILE.read_bytes()).pixels_sha256
OTHER = "cd" * 32
RECIPE_PARAMETERS = ('parameters { key: "preprocess', 'parameters { key: "pixels_sha256"')


def certificate(pixels: str = PIXELS, version: str = "1") -> dict[str, Any]:
    return {
        "version": version,
        "precision": "fp32",
        "source": {"name": "probe", "weights": "file"},
        "preprocess": {"sha256": RECIPE, "pixels_sha256": pixels},
        "note": 'it says "größer"\n',
    }


def parameter(key: str, value: str) -> str:
    return f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}\n"


def add_network(repository: Path, name: str, document: dict[str, Any]) -> None:
    """The probe under another name and with a certificate."""
    shutil.copytree(MODELS / "probe", repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    config = (MODELS / "probe" / "config.pbtxt").read_text().replace('"probe"', f'"{name}"')
    config += "version_policy { specific { versions: [ 1 ] } }\n" + parameter("certificate", json.dumps(document))
    (repository / name / "config.pbtxt").write_text(config)


def add_preprocessor(repository: Path, name: str, sha256: str) -> None:
    """The shipped preprocessor with the probe's recipe, and `sha256` as the hash of it."""
    shipped = ROOT / "model_repository" / "preprocessor"
    shutil.copytree(shipped, repository / name, ignore=shutil.ignore_patterns("configs", "__pycache__"))
    lines = (shipped / "config.pbtxt").read_text().replace('"preprocessor"', f'"{name}"').replace("224", "64")
    config = "".join(line for line in lines.splitlines(keepends=True) if not line.startswith(RECIPE_PARAMETERS))
    config += parameter("preprocess", "certified/preprocess.json") + parameter("preprocess_sha256", sha256)
    config += parameter("pixels_sha256", PIXELS)
    (repository / name / "config.pbtxt").write_text(config)


def add_ensemble(repository: Path, name: str, preprocessor: str, network: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    config = (MODELS / "probe_ensemble" / "config.pbtxt").read_text()
    for old, new in {"probe_ensemble": name, "probe_preprocessor": preprocessor, "probe": network}.items():
        config = config.replace(f'"{old}"', f'"{new}"')
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    """Serves `good`, and three that are not what they were certified as."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    repository = tmp_path_factory.mktemp("repository")
    add_preprocessor(repository, "pixels", RECIPE)
    add_preprocessor(repository, "edited_pixels", OTHER)
    add_network(repository, "certified", certificate())
    add_network(repository, "certified_otherwise", certificate(OTHER))
    add_network(repository, "certified_later", certificate(version="2"))
    add_ensemble(repository, "good", "pixels", "certified")
    add_ensemble(repository, "other_pixels", "pixels", "certified_otherwise")
    add_ensemble(repository, "other_version", "pixels", "certified_later")
    add_ensemble(repository, "edited_recipe", "edited_pixels", "certified_otherwise")
    http, grpc, metrics = free_ports(3)
    log_file = tmp_path_factory.mktemp("triton") / "triton.log"
    server = LocalTriton([repository], ports=Ports(http, grpc, metrics), log_file=log_file)
    with server:
        server.wait_ready()
        yield server


def classify(client: httpx.Client, model: str | None = None) -> httpx.Response:
    query = {"model": model} if model else {}
    return client.post("/v1/classify", params=query, content=encode(solid(RED)))


def test_the_certificate_reaches_the_caller(triton: LocalTriton) -> None:
    """As the builder wrote it, and the model answers."""
    with running_gateway(Settings(triton_url=triton.url, default_model="good")) as client:
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/models/good").json()["certificate"] == certificate()
        listed = client.get("/v1/models").json()
        assert [(m["id"], m["certified"], m["precision"]) for m in listed["data"]] == [("good", True, "fp32")]
        assert {"other_pixels", "other_version", "edited_recipe"} <= set(listed["unavailable"])
        assert classify(client).json()["model"]["name"] == "good"
        assert classify(client, "other_pixels").json()["code"] == "model_not_ready"


@pytest.mark.parametrize("model", ["other_pixels", "other_version", "edited_recipe"])
def test_what_was_not_certified_does_not_answer(triton: LocalTriton, model: str) -> None:
    """Not ready, no label, and not a word about files and hashes to the caller."""
    with running_gateway(Settings(triton_url=triton.url, default_model=model)) as client:
        for answer in (client.get("/readyz"), classify(client), client.get(f"/v1/models/{model}")):
            assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
            assert OTHER not in answer.text
            assert "preprocess.json" not in answer.text
        assert classify(client, "good").status_code == 200


def test_an_edited_recipe_is_refused_by_the_preprocessor_itself(triton: LocalTriton) -> None:
    """Triton tells the operator which file it is and what to do, whoever asks it."""
    with httpx.Client() as client:
        index = client.post(f"http://127.0.0.1:{triton.ports.http}/v2/repository/index").json()
    (reason,) = (model["reason"] for model in index if model["name"] == "edited_pixels")
    assert "certified/preprocess.json is not the one that the engine was certified with" in reason
    assert "python -m build_engines" in reason
