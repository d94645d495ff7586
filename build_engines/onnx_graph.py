"""ONNX graphs as every runtime here takes them, and the ends that a network's graph gets when it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper, version_converter

from build_engines.errors import GraphError
from build_engines.sources import INPUT, OUTPUTS
from build_engines.sources.features import SHORTEST

if TYPE_CHECKING:
    import numpy.typing as npt

    from build_engines.preprocessing import Normalisation

# Opsets and the IR version that onnxruntime, OpenVINO and TensorRT 10.12 to 11 all take.
OPSET = 18
OPSETS = range(13, 22)
IR_VERSION = 10

HEAD = "head/linear"
"""The name of a head's only matrix product."""

LARGEST = 2**31 - 2**20
"""Bytes: protobuf ends at 2 GiB; the rest is for the graph itself."""


def finished(model: onnx.ModelProto) -> bytes:
    """The content of the file: checked, and without traces of the machine that it was made on.

    Raises `GraphError` when onnx finds something wrong with it.
    """
    model.ir_version = min(model.ir_version, IR_VERSION)
    _strip(model)
    try:
        onnx.checker.check_model(model, full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        content: bytes = model.SerializeToString(deterministic=True)
    except (ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"The graph is not valid ONNX ({str(error).strip().splitlines()[0]}).") from error
    return content


def with_known_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same computation in an opset of `OPSETS`; `GraphError` when onnx cannot translate it."""
    version = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0)
    if version in OPSETS:
        return model
    try:
        return version_converter.convert_version(model, OPSET)
    except Exception as error:  # the converter raises what its C++ part happens to
        raise GraphError(
            f"The graph has opset {version} and cannot be translated: export it again with opset {OPSET}."
        ) from error


def with_free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph for one picture with the number of pictures left open, as far as its reshapes allow it.

    The graph may still be one that cannot take several: run it and compare.
    """
    free = onnx.ModelProto()
    free.CopyFrom(model)
    graph = free.graph
    del graph.value_info[:]
    for value in (*inputs(free), *graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    targets = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in targets:
            for attribute in node.attribute:
                if attribute.name == "value":
                    _free_reshape(attribute.t)
    for tensor in graph.initializer:
        if tensor.name in targets:
            _free_reshape(tensor)
    return free


def _free_reshape(tensor: TensorProto) -> None:
    """[1, …] → as many as there are: -1 where the shape has none yet, else 0, which keeps the number that comes."""
    sides = numpy_helper.to_array(tensor).copy()
    if len(sides) and sides[0] == 1:
        sides[0] = 0 if -1 in sides else -1
        tensor.CopyFrom(numpy_helper.from_array(sides, tensor.name))


def served(
    model: onnx.ModelProto, normalisation: Normalisation, task: str, *, width: int, softmax: bool
) -> onnx.ModelProto:
    """The network between the ends that the gateway's models have.

    `model` has one input, FP32 or FP16 [N, 3, size, size] or [N, size, size, 3], normalised, or UINT8
    [N, size, size, 3], which is passed on as it is; and one output [N, width]. Its batch must be free.
    """
    model = compose.add_prefix(model, "network/")
    graph = model.graph
    (image,) = inputs(model)
    (answer,) = graph.output
    size = normalisation.size
    front: list[onnx.NodeProto] = []
    if image.type.tensor_type.elem_type == TensorProto.UINT8:
        front.append(helper.make_node("Identity", [INPUT], [image.name]))
    else:
        front += _normalising(graph, image, normalisation)
    behind = [helper.make_node("Cast", [answer.name], ["logits"], to=TensorProto.FLOAT)]
    behind.append(
        helper.make_node("Softmax", ["logits"], [OUTPUTS[task]], axis=1)
        if softmax
        else helper.make_node("Identity", ["logits"], [OUTPUTS[task]])
    )
    nodes = [*front, *graph.node, *behind]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", size, size, 3]))
    graph.output.append(helper.make_tensor_value_info(OUTPUTS[task], TensorProto.FLOAT, ["N", width]))
    return model


def with_unit_length(graph: bytes) -> bytes:
    """A served graph of features with each feature divided by its length; one of zeros stays zeros."""
    model = onnx.load_from_string(graph)
    features = _opened(model, "features/raw")
    (output,) = model.graph.output
    for name, value in (("axes", np.array([1])), ("shortest", np.array(SHORTEST, np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, f"features/{name}"))
    model.graph.node.extend(
        [
            helper.make_node("Mul", [features, features], ["features/squares"]),
            helper.make_node("ReduceSum", ["features/squares", "features/axes"], ["features/sum"], keepdims=1),
            helper.make_node("Sqrt", ["features/sum"], ["features/length"]),
            helper.make_node("Max", ["features/length", "features/shortest"], ["features/divisor"]),
            helper.make_node("Div", [features, "features/divisor"], [output.name]),
        ]
    )
    return finished(model)


def with_head(graph: bytes, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> bytes:
    """A served graph of features [N, dim] with a linear layer behind them, weight [classes, dim] and bias [classes],
    and a softmax: a classifier."""
    model = onnx.load_from_string(graph)
    features = _opened(model, "head/features")
    for name, value in (("weight", weight), ("bias", bias)):
        model.graph.initializer.append(numpy_helper.from_array(value, f"head/{name}"))
    answer = OUTPUTS["classify"]
    model.graph.node.extend(
        [
            helper.make_node("Gemm", [features, "head/weight", "head/bias"], ["head/logits"], HEAD, transB=1),
            helper.make_node("Softmax", ["head/logits"], [answer], axis=1),
        ]
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(answer, TensorProto.FLOAT, ["N", len(weight)]))
    return finished(model)


def _opened(model: onnx.ModelProto, name: str) -> str:
    """Gives the only output this name inside the graph, and returns it: something else will be the output."""
    (output,) = model.graph.output
    for node in model.graph.node:
        node.input[:] = [name if value == output.name else value for value in node.input]
        node.output[:] = [name if value == output.name else value for value in node.output]
    return name


def inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a caller must give: old files list the weights among the inputs as well."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def shape(value: onnx.ValueInfoProto) -> list[int | None]:
    """Sides of a tensor, None where a side is free or unknown."""
    sides = value.type.tensor_type.shape.dim
    return [side.dim_value if side.HasField("dim_value") else None for side in sides]


def _normalising(
    graph: onnx.GraphProto, image: onnx.ValueInfoProto, normalisation: Normalisation
) -> list[onnx.NodeProto]:
    """UINT8 NHWC → what the network's input wants."""
    for name, numbers in (("mean", normalisation.mean), ("std", normalisation.std)):
        graph.initializer.append(numpy_helper.from_array(np.asarray(numbers, np.float32), name))
    names = iter(("pixels", "centred", "scaled", "turned"))
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, *others: str, **attributes: object) -> None:
        nodes.append(helper.make_node(kind, [nodes[-1].output[0] if nodes else INPUT, *others], [next(names)]))
        nodes[-1].attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())

    add("Cast", to=TensorProto.FLOAT)
    add("Sub", "mean")
    add("Div", "std")
    if shape(image)[1] == 3:
        add("Transpose", perm=[0, 3, 1, 2])
    nodes.append(helper.make_node("Cast", [nodes[-1].output[0]], [image.name], to=image.type.tensor_type.elem_type))
    return nodes


def _strip(model: onnx.ModelProto) -> None:
    """Removes stack traces and notes of exporters: they name files of the machine."""
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for function in model.functions:
        for field in ("doc_string", "metadata_props"):
            function.ClearField(field)
        for node in function.node:
            _strip_node(node)
    _strip_graph(model.graph)


def _strip_graph(graph: onnx.GraphProto) -> None:
    parts = (graph.input, graph.output, graph.value_info, graph.initializer)
    for part in (graph, *(value for values in parts for value in values)):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for node in graph.node:
        _strip_node(node)


def _strip_node(node: onnx.NodeProto) -> None:
    node.ClearField("doc_string")
    node.ClearField("metadata_props")
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            _strip_graph(graph)
