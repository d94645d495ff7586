"""Runs `model.onnx` in onnxruntime, one image at a time, on as many images at once as there are cores.

The network never sees a batch, so an image's answer cannot depend on its neighbours.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

# Names of onnxruntime's own operators after its optimisations.
_INT8 = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "ConvInteger", "MatMulInteger")
_FP32 = ("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul")


class Engine:
    """A network on the CPU: UINT8 [n, height, width, 3] → FP32 [n, width], for any n.

    `threads` is the number of images in work at once. `precision` is "fp32" or "int8", and is the graph's.
    """

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        if precision not in ("fp32", "int8"):
            raise RuntimeError(f"onnxruntime's CPU provider does not compute in {precision}")
        self._path = path
        self._session = onnxruntime.InferenceSession(str(path), _options(), providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self.width = int(self._session.get_outputs()[0].shape[1])
        self._pool = ThreadPoolExecutor(threads, "onnxruntime")

    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """The outputs for each image, in order."""
        outputs = np.empty((len(images), self.width), np.float32)

        def run(index: int) -> None:
            outputs[index] = self._session.run(None, {self._input: images[index : index + 1]})[0][0]

        for _ in self._pool.map(run, range(len(images))):
            pass  # raises what a run raised
        return outputs

    def layers(self) -> Mapping[str, int]:
        """How many convolutions and matrix products run in each precision, as the optimised graph shows it."""
        import onnx  # a builder's package; a server never asks

        with tempfile.TemporaryDirectory() as folder:
            options = _options()
            # The same fusions but for the renaming into blocked layouts.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
            onnxruntime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
            model = onnx.load(options.optimized_model_filepath)
        counts: Counter[str] = Counter()
        for node in model.graph.node:
            if node.op_type in _INT8:
                counts["int8"] += 1
            elif node.op_type in _FP32:
                counts["fp32"] += 1
        return dict(counts)


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the images are what runs side by side
    options.log_severity_level = 4  # what goes wrong is raised, too
    return options
