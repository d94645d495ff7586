"""Models to build from: the real one, and a tiny one that takes no time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from PIL import Image

from build_engines.build import Order
from build_engines.preprocessing import Normalisation, Preprocessing
from build_engines.sources import INPUT, Network
from build_engines.sources.checkpoint import read_checkpoint
from build_engines.sources.efficientnet_lite import LITE0, Architecture, Stage, build_graph
from build_engines.sources.packaged import PACKAGED

CLASSIFIER = Path(__file__).parents[2] / "model_repository" / "classifier"

TINY = Architecture(
    name="tiny",
    stem=4,
    stages=(
        Stage(blocks=1, kernel=3, stride=1, expansion=1, channels=4),
        Stage(blocks=2, kernel=5, stride=2, expansion=2, channels=6),
    ),
    head=5,
    classes=3,
)
TINY_NORMALISATION = Normalisation(size=14, color="RGB", mean=(120.0, 110.0, 100.0), std=(60.0, 70.0, 80.0))

Weights = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="session")
def lite0_weights() -> Weights:
    """The arrays of the default model's checkpoint."""
    return read_checkpoint(PACKAGED["efficientnet_lite0"].packaged().content)


@pytest.fixture(scope="session")
def lite0(lite0_weights: Weights) -> bytes:
    """The default model as the content of an ONNX file."""
    normalisation = Preprocessing.read((CLASSIFIER / "preprocess.json").read_bytes()).normalisation
    return build_graph(LITE0, lite0_weights, normalisation).SerializeToString(deterministic=True)


@pytest.fixture
def tiny_weights() -> Weights:
    """Random weights for TINY, always the same."""
    random = np.random.default_rng(0)
    weights: Weights = {}

    def convolution(name: str, norm: str, *shape: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, 0.5, shape).astype(np.float32)
        for part in ("weight", "bias", "running_mean"):
            weights[f"{norm}.{part}"] = random.normal(0.5, 0.5, shape[0]).astype(np.float32)
        weights[f"{norm}.running_var"] = random.uniform(0.2, 2, shape[0]).astype(np.float32)
        weights[f"{norm}.num_batches_tracked"] = np.asarray(7)

    convolution("_conv_stem", "_bn0", 4, 3, 3, 3)
    for index, (before, inside, after, kernel) in enumerate([(4, 4, 4, 3), (4, 8, 6, 5), (6, 12, 6, 5)]):
        block = f"_blocks.{index}"
        if inside != before:
            convolution(f"{block}._expand_conv", f"{block}._bn0", inside, before, 1, 1)
        convolution(f"{block}._depthwise_conv", f"{block}._bn1", inside, 1, kernel, kernel)
        convolution(f"{block}._project_conv", f"{block}._bn2", after, inside, 1, 1)
    convolution("_conv_head", "_bn1", 5, 6, 1, 1)
    weights["_fc.weight"] = random.normal(0, 1, (3, 5)).astype(np.float32)
    weights["_fc.bias"] = random.normal(0, 1, 3).astype(np.float32)
    return weights


@pytest.fixture
def tiny(tiny_weights: Weights) -> bytes:
    """The tiny model as the content of an ONNX file: pictures of 14 × 14, three classes."""
    return build_graph(TINY, tiny_weights, TINY_NORMALISATION).SerializeToString()


TINY_RECIPE = {
    "resize": "shorter",
    "resize_to": 16,
    "interpolation": "bilinear",
    "crop": "center",
    "size": 14,
    "color": "RGB",
    "mean": [120.0, 110.0, 100.0],
    "std": [60.0, 70.0, 80.0],
}
TINY_LABELS = ("cat", "dog", "fish")


@dataclass
class TinySource:
    """The tiny model as a source; a test may spoil its graph, and its reference stays right."""

    weights: Weights
    name: str = "tiny"
    task: str = "classify"
    labels: tuple[str, ...] | None = TINY_LABELS
    recipe: Mapping[str, Any] | None = field(default_factory=lambda: TINY_RECIPE)
    kind: str = "file"
    loaded: int = 0

    def identity(self) -> Mapping[str, Any]:
        return {"name": self.name, "weights": self.kind, "sha256": "5" * 64}

    def preprocess(self) -> Mapping[str, Any] | None:
        return self.recipe

    def load(self, normalisation: Normalisation) -> Network:
        self.loaded += 1
        session = onnxruntime.InferenceSession(self.graph(TINY_NORMALISATION))

        def reference(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            answer: npt.NDArray[np.float32] = session.run(None, {INPUT: pixels})[0]
            return answer

        return Network(self.task, self.graph(normalisation), reference, TINY.classes, self.labels)

    def graph(self, normalisation: Normalisation) -> bytes:
        content: bytes = build_graph(TINY, self.weights, normalisation).SerializeToString(deterministic=True)
        return content


@pytest.fixture
def tiny_source(tiny_weights: Weights, monkeypatch: pytest.MonkeyPatch) -> TinySource:
    """What `find_source` finds, whatever it is asked for."""
    # Sure of what it sees, as trained networks are: else INT8 would be asked to keep what is a tie.
    tiny_weights["_fc.weight"] = 8 * tiny_weights["_fc.weight"]
    source = TinySource(tiny_weights)
    monkeypatch.setattr("build_engines.build.find_source", lambda name, wish: source)
    return source


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """A build of the tiny model, FP32 for OpenVINO, into an empty repository; its speed is measured in no time."""
    monkeypatch.setattr("build_engines.measure.SECONDS", 0.01)
    return Order(source="tiny", repository=tmp_path / "repository", model="tiny", work=tmp_path / "work")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 24 small pictures, made here."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(1)
    for index in range(24):
        coarse = random.integers(0, 256, (3, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40, 30), Image.Resampling.BICUBIC).save(folder / f"{index:02}.png")
    return folder
