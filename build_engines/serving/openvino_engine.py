"""Runs `model.onnx` in OpenVINO.

One image at a time, on as many images at once as there are cores, and a last one that is left over gets all
cores to itself. That took the least time and the least CPU for every batch size (docs/adr/0002-cpu-runtime.md),
and the network never sees a batch: an image's answer cannot depend on its neighbours.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

# OpenVINO's names. INT8 layers are what the graph says; the hint is for the others, which by default some
# processors would compute in bfloat16.
_HINTS = {"fp32": "f32", "int8": "f32", "bf16": "bf16"}
_PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "u8": "int8", "i8": "int8"}
_COMPUTING = ("Convolution", "GroupConvolution", "FullyConnected", "MatMul")


class Engine:
    """A network on the CPU: UINT8 [n, height, width, 3] → FP32 [n, width], for any n.

    `threads` is the number of images in work at once, and of threads for a single image. `precision` is "fp32",
    "bf16" or "int8". Not safe for calls from several threads at once; one call already uses all its cores.
    """

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        core = openvino.Core()
        if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise RuntimeError("this processor has no bfloat16: build the model for fp32 or int8 here")
        model = core.read_model(path)
        self.width: int = model.output(0).get_partial_shape()[1].get_length()
        self._input: str = model.input(0).get_any_name()
        model.reshape([1, *list(model.input(0).get_partial_shape())[1:]])
        self._threads = threads
        hint = _HINTS[precision]
        self._one = _queue(core, model, threads, at_once=1, hint=hint)
        self._several = _queue(core, model, threads, at_once=threads, hint=hint)
        # All models of a server run the same program of Triton, on a local disk: a lock that they share.
        self._cores = os.open("/proc/self/exe", os.O_RDONLY)

    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """The outputs for each image, in order. `images` must be contiguous."""
        outputs = np.empty((len(images), self.width), np.float32)
        even = len(images) - (len(images) % self._threads == 1)
        with self._turn():
            self._start(self._several, images[:even], outputs[:even])
            if even < len(images):
                self._several.wait_all()
                self._start(self._one, images[even:], outputs[even:])
        self._several.wait_all()
        self._one.wait_all()
        return outputs

    def layers(self) -> Mapping[str, int]:
        """How many convolutions and matrix products run in each precision, as the compiled network reports it."""
        counts: Counter[str] = Counter()
        for operation in next(iter(self._one)).get_compiled_model().get_runtime_model().get_ops():
            info = operation.get_rt_info()
            if info["layerType"].astype(str) in _COMPUTING:
                precision = info["runtimePrecision"].astype(str)
                counts[_PRECISIONS.get(precision, precision)] += 1
        return dict(counts)

    def _start(self, queue: Any, images: npt.NDArray[np.uint8], rows: npt.NDArray[np.float32]) -> None:
        """Starts each image on its own; blocks while the queue is full."""
        for index, row in enumerate(rows):
            image = openvino.Tensor(images[index : index + 1], shared_memory=True)
            queue.start_async({self._input: image}, userdata=row, share_inputs=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The cores, for as long as there is more to start than they can take.

        Two instances take turns: while one hands its answers over, the other computes.
        """
        fcntl.flock(self._cores, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._cores, fcntl.LOCK_UN)


def _queue(core: Any, model: Any, threads: int, *, at_once: int, hint: str) -> Any:
    """OpenVINO's queue of the model for `at_once` images, with `threads` threads in all."""
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": hint,
            "NUM_STREAMS": at_once,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # other processes work on the same cores
        },
    )
    # Twice as many requests as streams: while one is computed, the next one waits behind it, not behind Python.
    queue = openvino.AsyncInferQueue(compiled, at_once if at_once == 1 else 2 * at_once)
    queue.set_callback(lambda request, row: np.copyto(row, request.get_output_tensor(0).data[0]))
    return queue
