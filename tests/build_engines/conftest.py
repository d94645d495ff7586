"""Models to build from: the real one, and a tiny one that takes no time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from build_engines.checkpoint import read_checkpoint
from build_engines.efficientnet_lite import LITE0, Architecture, Stage, build_graph
from build_engines.preprocessing import Normalisation, read_normalisation
from build_engines.sources import SOURCES, find_checkpoint

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
    return read_checkpoint(find_checkpoint(SOURCES["efficientnet_lite0"]).content)


@pytest.fixture(scope="session")
def lite0(lite0_weights: Weights) -> bytes:
    """The default model as the content of an ONNX file."""
    normalisation = read_normalisation((CLASSIFIER / "preprocess.json").read_bytes())
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


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """A repository's classifier as it is before the first build."""
    folder = tmp_path / "model_repository" / "classifier"
    folder.mkdir(parents=True)
    for name in ("preprocess.json", "labels.txt"):
        shutil.copy(CLASSIFIER / name, folder)
    return folder
