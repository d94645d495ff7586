from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from build_engines.calibration import TABLES, Ranges, measure, quantise, recipe_sha256
from build_engines.errors import GraphError, ImageSetError
from build_engines.onnx_graph import with_head, with_unit_length
from build_engines.sources import INPUT
from build_engines.sources.efficientnet_lite import build_graph
from build_engines.sources.packaged import PACKAGED
from tests.build_engines.conftest import TINY, TINY_NORMALISATION, Weights


@pytest.fixture
def pictures() -> npt.NDArray[np.uint8]:
    """Eight pictures of the tiny model's size."""
    return np.random.default_rng(2).integers(0, 256, (8, 14, 14, 3), dtype=np.uint8)


@pytest.fixture
def ranges(tiny: bytes, pictures: npt.NDArray[np.uint8]) -> Ranges:
    """What the tiny model's activations are on them."""
    return Ranges(measure(tiny, pictures), len(pictures), None, "", "")


def test_ranges_hold_every_value(tiny: bytes, pictures: npt.NDArray[np.uint8], ranges: Ranges) -> None:
    """The measured range of a tensor is that of its values when the graph is run by hand."""
    model = onnx.load_from_string(tiny)
    name = next(node.output[0] for node in model.graph.node if node.op_type == "Conv")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    values = onnxruntime.InferenceSession(model.SerializeToString()).run([name], {INPUT: pictures})[0]
    low, high = ranges.values[name]
    assert low == pytest.approx(min(values.min(), 0), rel=1e-5)
    assert high == pytest.approx(values.max(), rel=1e-5)


def test_a_table_survives_its_file(ranges: Ranges) -> None:
    """Written and read, it is the same; a range a line, so that a change can be reviewed."""
    content = ranges.to_json()
    assert Ranges.from_json(content) == ranges
    assert content.count(b"\n") == len(ranges.values) + 9


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema": 9}', b'{"schema": 1, "ranges": {"a": [2, 1]}}'])
def test_a_table_that_is_none_is_refused(content: bytes) -> None:
    """The error names the command that makes one."""
    with pytest.raises(ImageSetError, match="build_engines calibrate"):
        Ranges.from_json(content)


def test_a_table_of_another_graph_is_refused(tiny: bytes, ranges: Ranges) -> None:
    """A range of a tensor that is not there, or a missing one: never a default."""
    strange = Ranges({**ranges.values, "stranger": (0, 1)}, 8, None, "", "")
    with pytest.raises(GraphError, match="of another graph"):
        quantise(tiny, strange)
    first = next(name for name in ranges.values if name.startswith("conv"))
    missing = Ranges({name: pair for name, pair in ranges.values.items() if name != first}, 8, None, "", "")
    with pytest.raises(GraphError):
        quantise(tiny, missing)


def test_features_take_a_classifiers_table(tiny_weights: Weights, ranges: Ranges) -> None:
    """The graph of the features has the same tensors up to its end, which stays in FP32: what is measured for one holds
    for the other."""
    graph = with_unit_length(build_graph(TINY, tiny_weights, TINY_NORMALISATION, "embed").SerializeToString())
    assert 0 < len(ranges.values) - len(ranges.within(graph).values) <= 3
    model = onnx.load_from_string(quantise(graph, ranges.within(graph)))
    kinds = [node.op_type for node in model.graph.node]
    end = kinds[kinds.index("GlobalAveragePool") :]
    assert end == ["GlobalAveragePool", "Flatten", "Mul", "ReduceSum", "Sqrt", "Max", "Div"]
    assert kinds.count("Conv") == 10
    assert kinds.count("QuantizeLinear") > 10


def test_a_head_stays_in_float(tiny_weights: Weights, ranges: Ranges) -> None:
    """A linear layer that somebody trained on exact features is not rounded; no range of it is needed."""
    graph = build_graph(TINY, tiny_weights, TINY_NORMALISATION, "embed").SerializeToString()
    headed = with_head(graph, np.ones((2, TINY.head), np.float32), np.zeros(2, np.float32))
    model = onnx.load_from_string(quantise(headed, ranges.within(headed)))
    producers = {output: node for node in model.graph.node for output in node.output}
    gemm = producers[producers["CLASSIFICATION"].input[0]]
    assert gemm.op_type == "Gemm"
    assert gemm.input[1] == "head/weight"
    assert producers[gemm.input[0]].op_type == "Flatten"


def test_weights_have_seven_bits_a_channel(tiny: bytes, ranges: Ranges) -> None:
    """Each channel has its own scale, and no weight is beyond ±64: two products fit into 16 bits on any processor."""
    model = onnx.load_from_string(quantise(tiny, ranges))
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = [value for value in constants.values() if value.dtype == np.int8 and value.ndim > 1]
    assert len(weights) == 11
    assert max(np.abs(value.astype(int)).max() for value in weights) <= 64
    per_channel = [node for node in model.graph.node if any(attribute.name == "axis" for attribute in node.attribute)]
    assert len([node for node in per_channel if node.op_type == "DequantizeLinear"]) >= 11


def test_the_last_layer_and_the_softmax_stay_in_float(tiny: bytes, ranges: Ranges) -> None:
    """Probabilities are not rounded to 256 steps, and they sum to 1."""
    model = onnx.load_from_string(quantise(tiny, ranges))
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["QuantizeLinear"] > 0
    producers = {output: node for node in model.graph.node for output in node.output}
    softmax = producers[model.graph.output[0].name]
    assert softmax.op_type == "Softmax"
    assert producers[softmax.input[0]].op_type == "Gemm"


def test_the_same_table_gives_the_same_bytes(tiny: bytes, ranges: Ranges) -> None:
    """So a machine without pictures builds the very engine that was judged elsewhere."""
    assert quantise(tiny, ranges) == quantise(tiny, Ranges.from_json(ranges.to_json()))


def test_a_table_ships_for_the_default_model() -> None:
    """Measured with the pinned weights and recipe, by a command that it names, on pictures that are not in it."""
    source = PACKAGED["efficientnet_lite0"]
    table = Ranges.from_json(Path(TABLES, "efficientnet_lite0.json").read_bytes())
    assert table.weights_sha256 == source.sha256
    assert table.preprocess_sha256 == recipe_sha256(source.preprocess())
    assert table.images >= 250
    assert "build_engines calibrate efficientnet_lite0" in table.command
