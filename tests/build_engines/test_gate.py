from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from build_engines import gate
from build_engines.efficientnet_lite import build_graph
from build_engines.errors import GateError
from tests.build_engines.conftest import TINY, TINY_NORMALISATION, Weights


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Labels for three classes."""
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\ncat\n")
    return path


def constant_model(row: list[float]) -> bytes:
    """A model that answers `row` for every picture of 4 × 4 pixels, whatever it shows."""
    nodes = [
        helper.make_node("Shape", ["PREPROCESSED_IMAGE"], ["shape"], start=0, end=1),
        helper.make_node("Concat", ["shape", "one"], ["repeats"], axis=0),
        helper.make_node("Tile", ["row", "repeats"], ["CLASSIFICATION"]),
    ]
    constants = [
        numpy_helper.from_array(np.asarray([row], np.float32), "row"),
        numpy_helper.from_array(np.asarray([1]), "one"),
    ]
    image = helper.make_tensor_value_info("PREPROCESSED_IMAGE", TensorProto.UINT8, ["N", 4, 4, 3])
    answer = helper.make_tensor_value_info("CLASSIFICATION", TensorProto.FLOAT, ["N", len(row)])
    graph = helper.make_graph(nodes, "constant", [image], [answer], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_good_model_passes(tiny: bytes, labels: Path) -> None:
    """A classifier whose labels fit goes through."""
    gate.check(tiny, labels)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.5, float("nan"), 0.5], "not finite"),
        ([float("inf"), 0.0, 0.0], "not finite"),
        ([0.5, 0.5, 0.5], "do not sum to 1"),
        ([2.0, 1.0, 7.0], "do not sum to 1"),
    ],
)
def test_answers_that_are_no_probabilities_are_refused(row: list[float], words: str, labels: Path) -> None:
    """NaN, infinity and logits do not pass."""
    with pytest.raises(GateError, match=words):
        gate.check(constant_model(row), labels)


def test_a_model_that_does_not_run_is_refused(labels: Path) -> None:
    """A file that onnxruntime cannot load is refused with its words."""
    with pytest.raises(GateError, match="does not run"):
        gate.check(b"not a model", labels)


def test_answers_that_depend_on_the_batch_are_refused(tiny_weights: Weights, labels: Path) -> None:
    """A softmax over the images of a batch instead of over the classes does not pass."""
    model = build_graph(TINY, tiny_weights, TINY_NORMALISATION)
    softmax = model.graph.node[-1]
    mean = helper.make_node("ReduceMean", ["logits"], ["mean"], axes=[0], keepdims=1)
    mixed = helper.make_node("Add", ["logits", "mean"], ["mixed"])
    model.graph.node[-2].output[0] = "logits"
    softmax.input[0] = "mixed"
    model.graph.node.remove(softmax)
    model.graph.node.extend([mean, mixed, onnx.NodeProto.FromString(softmax.SerializeToString())])
    with pytest.raises(GateError, match="depend on the batch"):
        gate.check(model.SerializeToString(), labels)


@pytest.mark.parametrize("content", ["cat\ndog\n", "cat\ndog\ncat\nfish\n", "cat\ndog\ncat", "cat\r\ndog\r\ncat\r\n"])
def test_labels_must_fit(tiny: bytes, labels: Path, content: str) -> None:
    """A line too few or too many, a cut last line or Windows line ends: nothing is published."""
    labels.write_bytes(content.encode())
    with pytest.raises(GateError, match=r"labels\.txt .*Nothing was published"):
        gate.check(tiny, labels)
