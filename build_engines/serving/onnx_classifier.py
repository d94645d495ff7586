"""Serves a classifier's `model.onnx` on the CPU, in Triton's Python backend.

The builder copies this file as `model.py` beside `model.onnx`, so it imports nothing of the project.

OpenVINO runs the network for one image at a time, on as many images at once as there are cores, and a last
one that is left over gets all cores to itself. That took the least time and the least CPU for every batch
size (docs/adr/0002-cpu-runtime.md), and the network never sees a batch: an image's answer cannot depend on
its neighbours.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

INPUT = "PREPROCESSED_IMAGE"
OUTPUT = "CLASSIFICATION"


class UnfitError(RuntimeError):
    """This installation cannot serve this model; the message says why and what helps."""


class OnnxClassifier:
    """An ONNX classifier on the CPU: UINT8 [n, height, width, 3] → FP32 [n, classes], for any n.

    `threads` is the number of images in work at once, and of threads for a single image.
    Not safe for calls from several threads at once; one call already uses all cores.
    """

    def __init__(self, path: Path, threads: int) -> None:
        # Late, because the builder reads labels with this file and needs no OpenVINO.
        import openvino

        self._tensor = openvino.Tensor
        model = openvino.Core().read_model(path)
        self.classes = model.output(OUTPUT).get_partial_shape()[1].get_length()
        model.reshape([1, *list(model.input(INPUT).get_partial_shape())[1:]])
        self._threads = threads
        self._one = _queue(openvino, model, threads, at_once=1)
        self._several = _queue(openvino, model, threads, at_once=threads)
        # All models of a server run the same program of Triton, on a local disk: a lock that they share.
        self._cores = os.open("/proc/self/exe", os.O_RDONLY)

    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Probabilities of each image, in order. `images` must be contiguous."""
        probabilities = np.empty((len(images), self.classes), np.float32)
        even = len(images) - (len(images) % self._threads == 1)
        with self._turn():
            self._start(self._several, images[:even], probabilities[:even])
            if even < len(images):
                self._several.wait_all()
                self._start(self._one, images[even:], probabilities[even:])
        self._several.wait_all()
        self._one.wait_all()
        return probabilities

    def _start(self, queue: Any, images: npt.NDArray[np.uint8], rows: npt.NDArray[np.float32]) -> None:
        """Starts each image on its own; blocks while the queue is full."""
        for index, row in enumerate(rows):
            image = self._tensor(images[index : index + 1], shared_memory=True)
            queue.start_async({INPUT: image}, userdata=row, share_inputs=True)

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


def _queue(openvino: Any, model: Any, threads: int, at_once: int) -> Any:
    """OpenVINO's queue of the model for `at_once` images, with `threads` threads in all."""
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32",  # by default some processors would compute in bfloat16
            "NUM_STREAMS": at_once,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # other processes work on the same cores
        },
    )
    # Twice as many requests as streams: while one is computed, the next one waits behind it, not behind Python.
    queue = openvino.AsyncInferQueue(compiled, at_once if at_once == 1 else 2 * at_once)
    queue.set_callback(lambda request, row: np.copyto(row, request.get_output_tensor(0).data[0]))
    return queue


def read_labels(path: Path, classes: int) -> list[str]:
    """The labels of a `labels.txt`: line k, from 0, names class k.

    Raises `UnfitError` unless there are exactly `classes` lines, none empty, all ended by a plain newline.
    """
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UnfitError(f"The labels in {path} cannot be read: {error}.") from error
    if "\r" in text:
        raise UnfitError(f"{path} has Windows line ends; save it with plain newlines (dos2unix does it).")
    if not text.endswith("\n"):
        raise UnfitError(f"{path} does not end with a newline: its last label may be cut.")
    labels = text[:-1].split("\n")
    if len(labels) != classes:
        raise UnfitError(f"{path} has {len(labels)} labels, and the model has {classes} classes.")
    if "" in map(str.strip, labels):
        raise UnfitError(f"{path} has an empty line, number {[*map(str.strip, labels)].index('') + 1}.")
    return labels


def check_numpy(version: str) -> None:
    """`UnfitError` for numpy 2 and later: the stub of Triton 2.51 hands over arrays of 0xFF bytes to it."""
    if int(version.split(".")[0]) >= 2:
        raise UnfitError(
            f"numpy {version} is installed, and with it this Triton reads every image as white: "
            "install numpy 1.26 (pip install 'numpy<2')."
        )


def check_preprocessing(directory: Path) -> None:
    """`UnfitError` when the model was built for another `preprocess.json` than the one in `directory`."""
    path, preprocess = directory / "certificate.json", directory / "preprocess.json"
    if not path.exists():
        return
    certificate = json.loads(path.read_bytes())
    if hashlib.sha256(preprocess.read_bytes()).hexdigest() != certificate["preprocess"]["sha256"]:
        raise UnfitError(
            f"{preprocess} is not the one that the model was built for: build it again ({certificate['command']})."
        )


class TritonPythonModel:
    """What Triton's Python backend calls. Each instance uses all cores, in turn; two are enough.

    The parameter `threads` of `config.pbtxt` sets their number; unset or 0 means every core that this process
    may use.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Loads `model.onnx`, checks what surrounds it, and runs it on zeros, alone and side by side."""
        # Exists only inside Triton.
        import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

        check_numpy(np.__version__)
        self._triton: Any = pb_utils
        directory = Path(args["model_repository"])
        check_preprocessing(directory)
        config = json.loads(args["model_config"])
        self._shape = tuple(int(length) for length in config["input"][0]["dims"])
        threads = int(config.get("parameters", {}).get("threads", {}).get("string_value", "0"))
        self._classify = OnnxClassifier(
            directory / args["model_version"] / "model.onnx", threads or len(os.sched_getaffinity(0))
        )
        read_labels(directory / "labels.txt", self._classify.classes)
        for images in (1, 2):
            self._classify(np.zeros((images, *self._shape), np.uint8))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order; all images of all requests are classified in one go."""
        responses: list[Any] = [None] * len(requests)
        batches = {}
        for index, request in enumerate(requests):
            try:
                batches[index] = self._images(request)
            except Exception as error:  # each request fails by itself
                responses[index] = self._failure(error)
        try:
            images = np.concatenate([np.empty((0, *self._shape), np.uint8), *batches.values()])
            probabilities = self._classify(images)
        except Exception as error:
            return [response or self._failure(error) for response in responses]
        start = 0
        for index, batch in batches.items():
            rows = probabilities[start : start + len(batch)]
            tensor = self._triton.Tensor(OUTPUT, rows)
            responses[index] = self._triton.InferenceResponse(output_tensors=[tensor])
            start += len(batch)
        return responses

    def _images(self, request: Any) -> npt.NDArray[np.uint8]:
        """The images of one request: UINT8 [n, height, width, 3]."""
        images: npt.NDArray[Any] = self._triton.get_input_tensor_by_name(request, INPUT).as_numpy()
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != self._shape:
            raise ValueError(f"{INPUT} is {images.dtype} {images.shape}, not uint8 (n, *{self._shape})")
        return images

    def _failure(self, error: Exception) -> Any:
        """The error as one request's response."""
        message = f"{type(error).__name__}: {error}"
        self._triton.Logger.log_error(f"classifier: {message}")
        return self._triton.InferenceResponse(output_tensors=[], error=self._triton.TritonError(message))
