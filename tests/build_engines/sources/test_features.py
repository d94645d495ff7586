from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from build_engines.errors import SourceError
from build_engines.onnx_graph import OPSETS, with_unit_length
from build_engines.preprocessing import Preprocessing
from build_engines.sources import Network, Wish, find_source
from build_engines.sources.features import unit_length
from build_engines.sources.outputs import synthetic_pictures
from build_engines.sources.packaged import PACKAGED

LITE0 = "efficientnet_lite0"


def features(graph: bytes, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """What a served graph gives."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    found: npt.NDArray[np.float32] = session.run(["EMBEDDING"], {"PREPROCESSED_IMAGE": pixels})[0]
    return found


def loaded(wish: Wish) -> Network:
    """EfficientNet-Lite0 with a wish."""
    return find_source(LITE0, wish).load(Preprocessing.of(PACKAGED[LITE0].recipe).normalisation)


def test_features_have_length_1_unless_told_otherwise() -> None:
    """By default they do, and the model says so; with "none" they are the network's own, and nothing is promised."""
    unit, raw = loaded(Wish(task="embed")), loaded(Wish(task="embed", normalise="none"))
    pixels = synthetic_pictures(224)
    found, plain = features(unit.graph, pixels), features(raw.graph, pixels)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.linalg.norm(plain, axis=1).min() > 2
    np.testing.assert_allclose(found * np.linalg.norm(plain, axis=1, keepdims=True), plain, atol=1e-5)
    np.testing.assert_allclose(found, unit.reference(pixels), atol=1e-6)
    assert (unit.shown, raw.shown) == ({"normalised": "l2"}, {})


def test_the_length_is_part_of_what_a_model_is_made_of() -> None:
    """Whoever asks for another length gets another version."""
    identities = [
        find_source(LITE0, Wish(task="embed", normalise=length)).identity() for length in ("none", "l2", None)
    ]
    assert identities[0] != identities[1] == identities[2]
    assert identities[1]["normalised"] == "l2"


def test_a_classifier_has_no_features_to_normalise() -> None:
    """A wish without an effect is an error, and so is a length that there is not."""
    with pytest.raises(SourceError, match="efficientnet_lite0 gives classes, not features"):
        find_source(LITE0, Wish(normalise="l2"))
    with pytest.raises(SourceError, match="l2 or none, not l1"):
        find_source(LITE0, Wish(task="embed", normalise="l1"))


def mean_graph(opset: int) -> bytes:
    """UINT8 [N, 4, 4, 3] → the sum of each channel, FP32 [N, 3]."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2])
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["PREPROCESSED_IMAGE"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["x", "axes"], ["EMBEDDING"], keepdims=0),
        ],
        "sums",
        [helper.make_tensor_value_info("PREPROCESSED_IMAGE", TensorProto.UINT8, ["N", 4, 4, 3])],
        [helper.make_tensor_value_info("EMBEDDING", TensorProto.FLOAT, ["N", 3])],
        [axes],
    )
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ).SerializeToString()
    return content


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
def test_every_opset_and_every_feature_can_be_divided(opset: int) -> None:
    """Also a feature of zeros, which stays zeros and is never NaN, and one whose squares are large."""
    graph = with_unit_length(mean_graph(opset))
    pixels = np.zeros((3, 4, 4, 3), np.uint8)
    pixels[1, ..., 0], pixels[1, ..., 1] = 3, 4
    pixels[2] = 255
    found = features(graph, pixels)
    np.testing.assert_allclose(found, [[0.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.5773503, 0.5773503, 0.5773503]], atol=1e-6)
    assert with_unit_length(mean_graph(opset)) == graph


def test_the_reference_is_divided_as_the_graph_is(tmp_path: Path) -> None:
    """An ONNX file of somebody's features, zeros among them: graph and reference agree."""

    def sums(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return np.asarray(pixels.sum(axis=(1, 2)), np.float32)

    network = unit_length(Network("embed", mean_graph(17), sums, 3))
    pixels = np.concatenate([synthetic_pictures(4), np.zeros((1, 4, 4, 3), np.uint8)])
    np.testing.assert_allclose(features(network.graph, pixels), network.reference(pixels), atol=1e-6)
    assert network.width == 3


def test_a_served_graph_keeps_its_interface() -> None:
    """Name, type and shape of the output are as before, and nothing but the end of the graph is new."""
    before, after = (onnx.load_from_string(graph) for graph in (mean_graph(17), with_unit_length(mean_graph(17))))
    assert after.graph.output == before.graph.output
    assert [node.op_type for node in after.graph.node][:2] == ["Cast", "ReduceSum"]


def test_pooling_is_for_transformers_of_dino(tmp_path: Path) -> None:
    """Where there is no choice, a wish for one is refused."""
    (tmp_path / "m.onnx").touch()
    with pytest.raises(SourceError, match="whole network: its pooling cannot be chosen"):
        find_source(str(tmp_path / "m.onnx"), Wish(pool="class"))
    with pytest.raises(SourceError, match="pools its features in its own way"):
        find_source(LITE0, replace(Wish(task="embed"), pool="patches"))
