"""INT8 for CPUs: the ranges of a graph's activations, and the graph with those ranges built in.

Ranges are measured on real pictures and can be kept as a small table, so that a machine without pictures builds
the same engine. Weights are quantised per channel to 7 bits (`reduce_range`): on processors without VNNI an 8-bit
product of two neighbours overflows its 16 bits, silently. EfficientNet-Lite0 loses 6.4 points of top-1 that way
on an AVX2 machine, and 0.8 at most with 7 bits (docs/adr/0006-int8-default.md).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import GraphError, ImageSetError
from build_engines.sources import INPUT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

SCHEMA = 1

# What sums products, and what hands its results on. Functions with a steep or a long slope (softmax, layer norm,
# GELU) stay in FP32, and so does what the last layer gives: 256 steps of a logit would be 10 % steps of a probability.
_QUANTISED = [
    *("Conv", "MatMul", "Gemm", "Add", "Concat", "Pad", "AveragePool", "GlobalAveragePool", "MaxPool"),
    *("Relu", "Clip", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
]
_FLOAT_OUTPUTS = ["Gemm"]

# Behind the last of these a network only pools, reshapes and scales, which costs nothing: its end stays in FP32.
_BEFORE_THE_END = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Concat", "Pad", "Relu", "Clip"})
TABLES = Path(__file__).parent / "tables"
"""Tables that ship with the builder, one for each source that needs no pictures of the user's."""


@dataclass(frozen=True)
class Ranges:
    """The smallest and the largest value of each activation of one FP32 graph, by the tensor's name."""

    values: Mapping[str, tuple[float, float]]
    images: int
    """On how many pictures they were measured."""
    weights_sha256: str | None
    preprocess_sha256: str
    """Of the values of the recipe: what the pictures went through."""
    command: str
    """What measured them."""

    def to_json(self) -> bytes:
        """The table as a file."""
        document = {
            "schema": SCHEMA,
            "images": self.images,
            "weights_sha256": self.weights_sha256,
            "preprocess_sha256": self.preprocess_sha256,
            "command": self.command,
        }
        head = json.dumps(document, indent=2).removesuffix("\n}")
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(list(pair))}" for name, pair in self.values.items())
        return f'{head},\n  "ranges": {{\n{rows}\n  }}\n}}\n'.encode()

    @classmethod
    def from_json(cls, content: bytes) -> Ranges:
        """Reads a table; `ImageSetError` when it is none."""
        try:
            found = json.loads(content)
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']} is not {SCHEMA}")
            values = {str(name): (float(low), float(high)) for name, (low, high) in found["ranges"].items()}
            if not all(low <= high for low, high in values.values()):
                raise ValueError("a range ends before it begins")
            return cls(
                values,
                int(found["images"]),
                found["weights_sha256"],
                str(found["preprocess_sha256"]),
                str(found["command"]),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ImageSetError(
                f"The calibration table cannot be used ({error}): make one with `python -m build_engines calibrate`."
            ) from error

    def within(self, graph: bytes) -> Ranges:
        """Those of the tensors that `graph` has: of a classifier's, a graph of its features lacks the last ones."""
        import onnx

        nodes = onnx.load_from_string(graph).graph.node
        tensors = {name for node in nodes for name in (*node.input, *node.output)}
        return replace(self, values={name: pair for name, pair in self.values.items() if name in tensors})

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json()).hexdigest()


def recipe_sha256(document: Mapping[str, Any]) -> str:
    """The hash of a recipe's values, however its file is written."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def measure(graph: bytes, pictures: Iterable[npt.NDArray[np.uint8]]) -> dict[str, tuple[float, float]]:
    """The range of each activation of an FP32 graph over all `pictures`, UINT8 [size, size, 3] each."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the package ships no types
        def __init__(self) -> None:
            self._pictures: Iterator[npt.NDArray[np.uint8]] = iter(pictures)

        def get_next(self) -> dict[str, Any] | None:
            picture = next(self._pictures, None)
            return None if picture is None else {INPUT: picture[None]}

    with tempfile.TemporaryDirectory(prefix="tidegate-calibration-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(graph)
        calibrator = create_calibrator(
            path, _QUANTISED, str(Path(folder, "augmented.onnx")), calibrate_method=CalibrationMethod.MinMax
        )
        calibrator.collect_data(Reader())
        found = calibrator.compute_data()
        del calibrator
    return {name: (data.lowest.item(), data.highest.item()) for name, data in sorted(found.items())}


def quantise(graph: bytes, ranges: Ranges) -> bytes:
    """The graph with QDQ pairs: UINT8 activations, INT8 weights per channel in 7 bits. Same bytes each time.

    What comes behind the last layer that computes stays in FP32, and so does a head.
    Raises `GraphError` when the table is not of this graph.
    """
    import numpy as np
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(graph))
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    if strange := ranges.values.keys() - tensors:
        raise GraphError(
            f"The calibration table is of another graph ({min(strange)}, and {len(strange) - 1} more, are not in "
            "this one): make one with `python -m build_engines calibrate`."
        )
    data = {name: tuple(np.asarray(end, np.float32) for end in pair) for name, pair in ranges.values.items()}
    try:
        quantizer = QDQQuantizer(
            model,
            per_channel=True,
            reduce_range=True,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, data),
            nodes_to_quantize=[],
            nodes_to_exclude=_end(model),
            op_types_to_quantize=_QUANTISED,
            extra_options={"OpTypesToExcludeOutputQuantization": _FLOAT_OUTPUTS},
        )
        quantizer.quantize_model()
    except (ValueError, RuntimeError, KeyError) as error:
        raise GraphError(f"The graph cannot be quantised with this calibration table ({error}).") from error
    quantizer.model.topological_sort()
    quantised = quantizer.model.model
    quantised.graph.ClearField("value_info")
    onnx.checker.check_model(quantised)
    content: bytes = quantised.SerializeToString(deterministic=True)
    return content


def _end(model: onnx.ModelProto) -> list[str]:
    """The nodes between the last layers that compute and the output, and a head before it: their names, given here
    where they have none."""
    from build_engines.onnx_graph import HEAD

    producers = {output: node for node in model.graph.node for output in node.output}
    found: dict[str, onnx.NodeProto] = {}
    ahead = [output.name for output in model.graph.output]
    while ahead:
        node = producers.get(ahead.pop())
        if node is None or node.output[0] in found:
            continue
        if node.op_type not in _BEFORE_THE_END or node.name == HEAD:
            found[node.output[0]] = node
            ahead += node.input
    for output, node in found.items():
        node.name = node.name or f"end/{output}"
    return sorted(node.name for node in found.values())
