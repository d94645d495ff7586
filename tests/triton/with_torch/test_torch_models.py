"""Checkpoints of torch, from the file to the answer of a real Triton (make test-torch)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton_grpc

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

import torch

from build_engines.build import Order, build
from build_engines.preprocessing import Preprocessing
from build_engines.sources import Wish, find_source
from gateway.settings import Settings
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.build_engines.sources.with_torch.conftest import shaken
from tests.pictures import encode, noise
from tests.servers import running_gateway, wait_for

pytestmark = pytest.mark.timeout(600)  # three networks are exported first
FLOWERS = ("rose", "tulip", "daisy", "lily", "iris", "poppy", "aster")
FILES = [encode(noise(200 + 40 * k, 300), "JPEG") for k in range(4)]


def quiet(_: str) -> None:
    """Says nothing."""


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Order:
    """A ResNet-50 with seven classes, whose checkpoint was saved by a program that used several GPUs."""
    from torchvision.models import resnet50  # after conftest has made it importable

    folder = tmp_path_factory.mktemp("torch")
    state = {f"module.{name}": value for name, value in shaken(resnet50(num_classes=7)).items()}
    torch.save({"state_dict": state, "epoch": 90}, folder / "flowers.pth")
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in FLOWERS))
    (folder / "pictures").mkdir()
    for k, file in enumerate(FILES):
        (folder / "pictures" / f"{k}.jpg").write_bytes(file)
    return Order(
        source="resnet50",
        wish=Wish(weights=str(folder / "flowers.pth")),
        labels=folder / "labels.txt",
        images=folder / "pictures",
        repository=folder / "repository",
        model="flowers",
        work=folder / "work",
    )


@pytest.fixture(scope="module")
def loadtest(order: Order) -> Order:
    """The same network with random weights, for onnxruntime."""
    return replace(order, wish=Wish(weights="random"), labels=None, model="loadtest", target="onnxruntime")


@pytest.fixture(scope="module")
def dino(order: Order) -> Order:
    """A network of DINOv2's shape, with weights of its own."""
    import timm

    network = timm.create_model("vit_small_patch14_dinov2", pretrained=False, num_classes=0, img_size=224)
    path = order.repository.parent / "dino.pth"
    torch.save(shaken(network), path)
    return replace(order, source="dinov2_vits14", wish=Wish(weights=str(path)), labels=None, model="dino")


@pytest.fixture(scope="module")
def triton(order: Order, loadtest: Order, dino: Order) -> Iterator[LocalTriton]:
    """A Triton that serves all three."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("build_engines.measure.BATCHES", (1,))  # these networks are slow on CPUs
        for each in (order, loadtest, dino):
            build(each, quiet)
    with LocalTriton([order.repository], ports=Ports(*free_ports(3))) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(triton: LocalTriton) -> Iterator[httpx.Client]:
    """A gateway whose default model are the flowers."""
    with running_gateway(Settings(triton_url=triton.url, default_model="flowers")) as client:
        wait_for(client, "/readyz")
        yield client


def expected(order: Order) -> npt.NDArray[np.float32]:
    """What torch itself answers to `FILES`."""
    source = find_source(order.source, order.wish)
    recipe = source.preprocess()
    assert recipe is not None
    preprocessing = Preprocessing.of(recipe)
    network = source.load(preprocessing.normalisation)
    return network.reference(np.stack([preprocessing.pixels(file) for file in FILES]))


def test_a_checkpoint_answers_as_in_torch(client: httpx.Client, order: Order) -> None:
    """Seven classes under their own names, and the probabilities of the network in torch."""
    answer = client.post("/v1/classify", files=[("files", file) for file in FILES], params={"top_k": 7}).json()
    rows = expected(order)
    assert np.ptp(rows, axis=0).max() > 0.05, "the pictures must make a difference"
    for result, row in zip(answer["results"], rows, strict=True):
        found = {prediction["label"]: prediction["probability"] for prediction in result["predictions"]}
        assert found == pytest.approx(dict(zip(FLOWERS, row.tolist(), strict=True)), abs=2e-3)


def test_every_model_has_its_certificate(client: httpx.Client) -> None:
    """The file's hash, the network, and FP32 as the runtime counts its layers."""
    certificate = client.get("/v1/models/flowers").json()["certificate"]
    assert certificate["source"]["name"] == "torchvision/resnet50"
    assert certificate["source"]["file"] == "flowers.pth"
    assert len(certificate["source"]["sha256"]) == 64
    assert certificate["layers"] == {"fp32": 54}
    assert certificate["agreement"]["deviation"] < 1e-3
    loadtest = client.get("/v1/models/loadtest").json()
    assert (loadtest["weights"], loadtest["classes"]) == ("random", 1000)


def test_random_weights_are_no_default_model(triton: LocalTriton, client: httpx.Client) -> None:
    """By its name it answers, as load tests want it; a gateway whose default it is is not ready."""
    assert client.post("/v1/classify", content=FILES[0], params={"model": "loadtest"}).status_code == 200
    with running_gateway(Settings(triton_url=triton.url, default_model="loadtest")) as other:
        assert other.get("/readyz").status_code == 503
        assert other.post("/v1/classify", content=FILES[0]).json()["code"] == "model_not_ready"


def test_features_are_those_of_torch(triton: LocalTriton, dino: Order) -> None:
    """The backbone's class token for each file, asked of the ensemble itself; its certificate stands beside it."""
    longest = max(map(len, FILES))
    padded = np.zeros((len(FILES), longest), np.uint8)
    for row, file in zip(padded, FILES, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    inputs = [
        triton_grpc.InferInput("RAW_IMAGE", padded.shape, "UINT8"),
        triton_grpc.InferInput("IMAGE_LENGTH", [len(FILES), 1], "INT32"),
    ]
    inputs[0].set_data_from_numpy(padded)
    inputs[1].set_data_from_numpy(np.array([[len(file)] for file in FILES], np.int32))
    with triton_grpc.InferenceServerClient(triton.url) as server:
        answer = server.infer("dino", inputs)
        config = server.get_model_config("dino_embedder").config
    assert answer.as_numpy("IMAGE_STATUS").ravel().tolist() == [0] * len(FILES)
    features, wanted = answer.as_numpy("EMBEDDING"), expected(dino)
    assert features.shape == (len(FILES), 384)
    spread = np.linalg.norm(wanted - wanted.mean(axis=0))
    assert np.linalg.norm(features - wanted) < 0.01 * spread
    certificate = json.loads(config.parameters["certificate"].string_value)
    assert (certificate["task"], certificate["source"]["name"]) == ("embed", "dinov2_vits14")
