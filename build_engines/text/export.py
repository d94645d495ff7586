"""scikit-learn → ONNX, through skl2onnx, with its graph fitted to words that are found already.

skl2onnx splits texts by an operator of onnxruntime's own; here `words.py` finds the words, and the graph takes them as
they are: WORDS, strings [N, longest], each text padded with empty strings. What it gives is CLASSIFICATION or
EMBEDDING, FP32 [N, width].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType

from build_engines.configs import TEXT_OUTPUTS
from build_engines.text.train import SHORTEST, Trained

OPSETS = {"": 17, "ai.onnx.ml": 3}


def export(trained: Trained) -> bytes:
    """The model as ONNX. Uses the standard's own operators only, so that any runtime can run it."""
    options: dict[int, dict[str, Any]] = {id(trained.vectoriser): {"separators": [" "], "tokenexp": None}}
    if trained.task == "text_classify":
        options[id(trained.pipeline)] = {"zipmap": False}
    given = [("TEXT", StringTensorType([None, 1]))]
    model = to_onnx(trained.pipeline, initial_types=given, options=options, target_opset=OPSETS)
    graph = model.graph
    rows, output = graph.output[-1].name, TEXT_OUTPUTS[trained.task]
    _take_words(graph)
    _measure(graph)
    if trained.task == "text_embed":
        _multiply_few(graph, trained.width)
        rows = _unit_length(graph, rows)
    graph.node.append(helper.make_node("Identity", [rows], [output]))
    del graph.output[:], graph.value_info[:]
    graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", trained.width]))
    kept = [opset for opset in model.opset_import if opset.domain in OPSETS]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def _take_words(graph: Any) -> None:
    """Words in place of texts."""
    nodes = {node.op_type: node for node in graph.node}
    nodes["TfIdfVectorizer"].input[0] = "WORDS"
    graph.node.remove(nodes["Tokenizer"])
    graph.node.remove(nodes["Flatten"])
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("WORDS", TensorProto.STRING, ["N", "longest"]))


def _measure(graph: Any) -> None:
    """Sums in place of the Normalizer of TF-IDF, for which onnxruntime takes ten times as long."""
    (index,) = (i for i, node in enumerate(graph.node) if _is_l2(node))
    vectors, unit = graph.node[index].input[0], graph.node[index].output[0]
    _constant(graph, "columns", np.array([1], np.int64))
    _constant(graph, "smallest", np.float32(1e-30))  # of a text without words
    parts = [
        helper.make_node("Mul", [vectors, vectors], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "columns"], ["sum_of_squares"], keepdims=1),
        helper.make_node("Max", ["sum_of_squares", "smallest"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["length"]),
        helper.make_node("Div", [vectors, "length"], [unit]),
    ]
    del graph.node[index]
    for part in reversed(parts):
        graph.node.insert(index, part)


def _is_l2(node: Any) -> bool:
    return bool(node.op_type == "Normalizer" and helper.get_node_attr_value(node, "norm") == b"L2")


def _multiply_few(graph: Any, width: int) -> None:
    """The rows of the projection that a text's few terms stand for, in place of a product with all of it."""
    (index,) = (i for i, node in enumerate(graph.node) if node.op_type == "MatMul")
    (vectors, projection), (rows,) = graph.node[index].input, graph.node[index].output
    _constant(graph, "first", np.int64(0))
    _constant(graph, "second", np.int64(1))
    _constant(graph, "width", np.array([width], np.int64))
    parts = [
        helper.make_node("NonZero", [vectors], ["places"]),  # [2, terms of all texts]
        helper.make_node("Transpose", ["places"], ["each_place"], perm=[1, 0]),
        helper.make_node("GatherND", [vectors, "each_place"], ["values"]),
        helper.make_node("Unsqueeze", ["values", "columns"], ["as_column"]),
        helper.make_node("Gather", ["places", "second"], ["terms"], axis=0),
        helper.make_node("Gather", [projection, "terms"], ["directions"], axis=0),
        helper.make_node("Mul", ["directions", "as_column"], ["summands"]),
        helper.make_node("Gather", ["places", "first"], ["texts"], axis=0),
        helper.make_node("Unsqueeze", ["texts", "columns"], ["each_text"]),
        helper.make_node("Shape", [vectors], ["count"], start=0, end=1),
        helper.make_node("Concat", ["count", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ScatterND", ["zeros", "each_text", "summands"], [rows], reduction="add"),
    ]
    del graph.node[index]
    for part in reversed(parts):
        graph.node.insert(index, part)


def _unit_length(graph: Any, rows: str) -> str:
    """Rows of length 1; and of zeros for a text of which next to nothing lies in the space."""
    _constant(graph, "shortest", np.float32(SHORTEST))
    _constant(graph, "zero", np.float32(0))
    graph.node.extend(
        [
            helper.make_node("ReduceL2", [rows], ["part"], axes=[1], keepdims=1),
            helper.make_node("GreaterOrEqual", ["part", "shortest"], ["usable"]),
            helper.make_node("Max", ["part", "shortest"], ["divisor"]),
            helper.make_node("Div", [rows, "divisor"], ["any_length"]),
            helper.make_node("Where", ["usable", "any_length", "zero"], ["unit"]),
        ]
    )
    return "unit"


def _constant(graph: Any, name: str, value: Any) -> None:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
