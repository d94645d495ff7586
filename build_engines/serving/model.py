"""Serves `model.onnx` on the CPU, in Triton's Python backend, through the `engine.py` beside it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

INPUT = "PREPROCESSED_IMAGE"


class UnfitError(RuntimeError):
    """This installation cannot serve this model; the message says why and what helps."""


def parse_labels(content: bytes, classes: int) -> list[str]:
    """The labels of a `labels.txt`: line k, from 0, names class k.

    Raises `UnfitError` unless there are exactly `classes` lines, none empty, all ended by a plain newline.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UnfitError(f"labels.txt is not UTF-8 ({error}).") from error
    if "\ufeff" in text or "\0" in text:
        raise UnfitError("labels.txt has a byte order mark or a zero byte in it; save it as plain UTF-8.")
    if "\r" in text:
        raise UnfitError("labels.txt has Windows line ends; save it with plain newlines (dos2unix does it).")
    if not text.endswith("\n"):
        raise UnfitError("labels.txt does not end with a newline: its last label may be cut.")
    labels = text[:-1].split("\n")
    if len(labels) != classes:
        raise UnfitError(f"labels.txt has {len(labels)} labels, and the model has {classes} classes.")
    if "" in map(str.strip, labels):
        raise UnfitError(f"labels.txt has an empty line, number {[*map(str.strip, labels)].index('') + 1}.")
    return labels


def check_files(version: Path) -> None:
    """`UnfitError` unless every file of a version's folder is the one that its certificate names.

    Without a certificate, in a repository made by hand, there is nothing to check.
    """
    certificate = version / "certificate.json"
    if not certificate.exists():
        return
    try:
        files = dict(json.loads(certificate.read_bytes())["files"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UnfitError(f"{certificate} cannot be read ({error}): build the model again.") from error
    for name, sha256 in files.items():
        path = version / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise UnfitError(
                f"{path} is not the file that was published: build the model again "
                "(python -m build_engines), or serve another version (--promote)."
            )


def check_numpy(version: str) -> None:
    """`UnfitError` for numpy 2 and later: the stub of Triton 2.51 hands over arrays of 0xFF bytes to it."""
    if int(version.split(".")[0]) >= 2:
        raise UnfitError(
            f"numpy {version} is installed, and with it this Triton reads every image as white: "
            "install numpy 1.26 (pip install 'numpy<2')."
        )


class TritonPythonModel:
    """What Triton's Python backend calls. Each instance uses all cores, in turn; two are enough.

    Parameters of `config.pbtxt`: `threads` sets their number (unset or 0: every core that this process may use),
    `precision` is the engine's.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Checks the files, loads the engine, and runs it on zeros, alone and side by side."""
        # Exists only inside Triton.
        import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

        check_numpy(np.__version__)
        self._triton: Any = pb_utils
        folder = Path(args["model_repository"])
        version = folder / args["model_version"]
        check_files(version)
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        (output,) = config["output"]
        self._name, self._output = args["model_name"], output["name"]
        self._shape = tuple(int(length) for length in config["input"][0]["dims"])
        threads = int(parameters.get("threads", "0")) or len(os.sched_getaffinity(0))
        self._run = load_engine(version, threads, parameters.get("precision", "fp32"))
        if [int(length) for length in output["dims"]] != [self._run.width]:
            raise UnfitError(f"The configuration promises {output['dims']}, and the model gives {self._run.width}.")
        own = f"{version.name}/labels.txt"
        if (version / "certificate.json").exists() and output.get("label_filename", own) not in ("", own):
            raise UnfitError(
                f"The configuration names labels of another version than {version.name}: "
                f"promote it again (python -m build_engines --promote {version.name})."
            )
        if output.get("label_filename"):
            parse_labels((folder / output["label_filename"]).read_bytes(), self._run.width)
        for images in (1, 2):
            self._run(np.zeros((images, *self._shape), np.uint8))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order; the images of all requests are run in one go."""
        responses: list[Any] = [None] * len(requests)
        batches = {}
        for index, request in enumerate(requests):
            try:
                batches[index] = self._images(request)
            except Exception as error:  # each request fails by itself
                responses[index] = self._failure(error)
        try:
            images = np.concatenate([np.empty((0, *self._shape), np.uint8), *batches.values()])
            rows = self._run(images)
        except Exception as error:
            return [response or self._failure(error) for response in responses]
        start = 0
        for index, batch in batches.items():
            tensor = self._triton.Tensor(self._output, rows[start : start + len(batch)])
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
        self._triton.Logger.log_error(f"{self._name}: {message}")
        return self._triton.InferenceResponse(output_tensors=[], error=self._triton.TritonError(message))


def load_engine(version: Path, threads: int, precision: str) -> Any:
    """The `Engine` of a version's folder. By path: the module's name could be anyone's where Triton's stub looks."""
    spec = importlib.util.spec_from_file_location("tidegate_engine", version / "engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Engine(version / "model.onnx", threads, precision)
