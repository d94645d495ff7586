"""EfficientNet-Lite as an ONNX graph, from a table of its stages and the arrays of a PyTorch checkpoint.

The network is the one of "EfficientNet" (Tan and Le, 2019) without squeeze-and-excitation and with ReLU6,
as TensorFlow's `efficientnet/lite` describes it; the arrays have the names of `efficientnet-lite-pytorch`.
Three habits of TensorFlow are kept: batch norm with an epsilon of 1e-3, "SAME" padding, which puts the odd
pixel at the end, and zeros around the normalised image, not around its pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from build_engines.errors import GraphError
from build_engines.preprocessing import Normalisation
from build_engines.sources import INPUT, OUTPUTS

# Plain operators: an opset that every runtime in question has long taken, and the IR version of its time.
OPSET = 17
IR_VERSION = 8

BATCH_NORM_EPSILON = 1e-3


@dataclass(frozen=True)
class Stage:
    """Inverted residual blocks in a row; the first one changes the width and has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    """Channels inside a block over those that come in; 1 means that there is no widening convolution."""
    channels: int
    """Channels that come out."""


@dataclass(frozen=True)
class Architecture:
    """A whole network: a 3×3 stem of stride 2, stages, a 1×1 head, and a linear layer."""

    name: str
    stem: int
    stages: tuple[Stage, ...]
    head: int
    classes: int


LITE0 = Architecture(
    name="efficientnet_lite0",
    stem=32,
    stages=(
        Stage(blocks=1, kernel=3, stride=1, expansion=1, channels=16),
        Stage(blocks=2, kernel=3, stride=2, expansion=6, channels=24),
        Stage(blocks=2, kernel=5, stride=2, expansion=6, channels=40),
        Stage(blocks=3, kernel=3, stride=2, expansion=6, channels=80),
        Stage(blocks=3, kernel=5, stride=1, expansion=6, channels=112),
        Stage(blocks=4, kernel=5, stride=2, expansion=6, channels=192),
        Stage(blocks=1, kernel=3, stride=1, expansion=6, channels=320),
    ),
    head=1280,
    classes=1000,
)


def build_graph(
    architecture: Architecture,
    weights: Mapping[str, npt.NDArray[Any]],
    normalisation: Normalisation,
    task: str = "classify",
) -> onnx.ModelProto:
    """The network as a checked ONNX model.

    Input `PREPROCESSED_IMAGE`: UINT8 [N, size, size, 3], pixels in the order of `normalisation.color`.
    Output `CLASSIFICATION`: FP32 [N, classes], probabilities; for the task "embed" `EMBEDDING`: FP32 [N, head], what
    the last layer is given. N is free; normalising and softmax are inside.

    Raises `GraphError` when a weight is missing, is left over, has another shape, or is not finite.
    """
    graph = _Graph(weights)
    pixels = _normalise(graph, normalisation)
    x = _Feature(pixels, channels=3, size=normalisation.size)
    x = graph.convolve(x, "_conv_stem", "_bn0", channels=architecture.stem, kernel=3, stride=2)
    index = 0
    for stage in architecture.stages:
        for repeat in range(stage.blocks):
            x = _block(graph, f"_blocks.{index}", x, stage, stride=stage.stride if repeat == 0 else 1)
            index += 1
    x = graph.convolve(x, "_conv_head", "_bn1", channels=architecture.head, kernel=1)
    pooled = graph.add("GlobalAveragePool", [x.name])
    matrix = graph.weight("_fc.weight", (architecture.classes, architecture.head))
    bias = graph.weight("_fc.bias", (architecture.classes,))
    graph.refuse_leftovers()
    if task == "embed":
        graph.add("Flatten", [pooled], output=OUTPUTS[task], axis=1)
        return _model(graph, architecture.name, normalisation.size, task, architecture.head)
    flat = graph.add("Flatten", [pooled], axis=1)
    logits = graph.add("Gemm", [flat, graph.constant(matrix), graph.constant(bias)], transB=1)
    graph.add("Softmax", [logits], output=OUTPUTS[task], axis=-1)
    return _model(graph, architecture.name, normalisation.size, task, architecture.classes)


@dataclass(frozen=True)
class _Feature:
    """A square feature map: the name of its tensor, [N, channels, size, size]."""

    name: str
    channels: int
    size: int


def _normalise(graph: _Graph, normalisation: Normalisation) -> str:
    """UINT8 NHWC pixels → normalised FP32 NCHW."""
    mean = graph.constant(np.asarray(normalisation.mean, np.float32))
    std = graph.constant(np.asarray(normalisation.std, np.float32))
    x = graph.add("Cast", [INPUT], to=TensorProto.FLOAT)
    x = graph.add("Div", [graph.add("Sub", [x, mean]), std])
    if normalisation.color == "BGR":  # the weights are for RGB
        x = graph.add("Gather", [x, graph.constant(np.array([2, 1, 0]))], axis=3)
    return graph.add("Transpose", [x], perm=[0, 3, 1, 2])


def _block(graph: _Graph, name: str, x: _Feature, stage: Stage, stride: int) -> _Feature:
    """Widen, filter each channel by itself, narrow; add the input where the shapes allow it."""
    inside = x
    if stage.expansion != 1:
        wide = x.channels * stage.expansion
        inside = graph.convolve(x, f"{name}._expand_conv", f"{name}._bn0", channels=wide, kernel=1)
    inside = graph.convolve(
        inside,
        f"{name}._depthwise_conv",
        f"{name}._bn1",
        channels=inside.channels,
        kernel=stage.kernel,
        stride=stride,
        groups=inside.channels,
    )
    out = graph.convolve(inside, f"{name}._project_conv", f"{name}._bn2", channels=stage.channels, kernel=1, relu=False)
    if stride == 1 and out.channels == x.channels:
        return _Feature(graph.add("Add", [out.name, x.name]), out.channels, out.size)
    return out


class _Graph:
    """Nodes and constants in the making; takes weights by name and remembers which were taken."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._weights = weights
        self._taken: set[str] = set()

    def add(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        """Appends a node and returns the name of its output."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, value: npt.NDArray[Any]) -> str:
        """Appends a constant and returns its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """A weight from the checkpoint, contiguous, with exactly this shape."""
        if name not in self._weights:
            raise GraphError(f"The checkpoint has no {name}: it is of another network.")
        value = self._weights[name]
        if value.shape != shape:
            raise GraphError(f"{name} has the shape {value.shape}, and the network needs {shape}.")
        if not np.isfinite(value).all():
            raise GraphError(f"{name} holds values that are not finite: the checkpoint is damaged.")
        self._taken.add(name)
        return np.ascontiguousarray(value, np.float32)

    def convolve(
        self,
        x: _Feature,
        convolution: str,
        batch_norm: str,
        *,
        channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> _Feature:
        """A convolution with its batch norm folded in, "SAME" padding, and ReLU6 behind it if wanted."""
        filters = self.weight(f"{convolution}.weight", (channels, x.channels // groups, kernel, kernel))
        gamma, beta, mean, variance = (
            self.weight(f"{batch_norm}.{part}", (channels,)).astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / np.sqrt(variance + BATCH_NORM_EPSILON)
        folded = (filters * scale[:, None, None, None]).astype(np.float32)
        bias = (beta - mean * scale).astype(np.float32)
        size, before, after = _same_padding(x.size, kernel, stride)
        name = self.add(
            "Conv",
            [x.name, self.constant(folded), self.constant(bias)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[before, before, after, after],
            group=groups,
        )
        if relu:
            limits = [self.constant(np.asarray(limit, np.float32)) for limit in (0, 6)]
            name = self.add("Clip", [name, *limits])
        return _Feature(name, channels, size)

    def refuse_leftovers(self) -> None:
        """`GraphError` when the checkpoint has weights that the network did not take."""
        left = {name for name in self._weights if not name.endswith(".num_batches_tracked")} - self._taken
        if left:
            raise GraphError(f"The network has no use for {len(left)} of the checkpoint's weights ({min(left)}).")


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int, int]:
    """Size of the output, and the pixels of padding before and after, as TensorFlow's "SAME" has it."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return out, total // 2, total - total // 2


def _model(graph: _Graph, name: str, size: int, task: str, width: int) -> onnx.ModelProto:
    """The finished model, after onnx's own checks."""
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            name,
            [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", size, size, 3])],
            [helper.make_tensor_value_info(OUTPUTS[task], TensorProto.FLOAT, ["N", width])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="tidegate",
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    return model
