"""Serves a text model in Triton's Python backend: TEXT → CLASSIFICATION or EMBEDDING, and KNOWN_WORDS."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np


class TritonPythonModel:
    """What Triton's Python backend calls. An instance takes one core."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the engine; raises an error that says what is wrong where it is not the one that was certified."""
        # Exists only inside Triton.
        import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

        if int(np.__version__.split(".")[0]) >= 2:
            raise RuntimeError(
                f"numpy {np.__version__} is installed, and with it Triton's Python backend up to 2.51 reads wrong "
                "bytes: install numpy 1.26 (pip install 'numpy<2')."
            )
        self._triton: Any = pb_utils
        self._name = args["model_name"]
        version = args["model_version"]
        engine = _load(Path(args["model_repository"], version, "engine.py"))
        self._engine = engine.load(Path(args["model_repository"], version))
        rows = json.loads(args["model_config"])["output"][0]
        dims = [int(length) for length in rows["dims"]]
        if (rows["name"], dims) != (self._engine.output, [self._engine.width]):
            raise engine.UnfitError(
                f"config.pbtxt promises {rows['name']} {dims}, and version {version} gives {self._engine.output} "
                f"[{self._engine.width}]: promote it again (python -m build_engines --promote {version})."
            )
        if rows["name"] == "CLASSIFICATION" and rows.get("label_filename") != f"{version}/labels.txt":
            raise engine.UnfitError(
                f"config.pbtxt names the labels of another version than {version}: "
                f"promote it again (python -m build_engines --promote {version})."
            )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order; the texts of all requests are run in one go."""
        responses: list[Any] = [None] * len(requests)
        texts: list[bytes] = []
        places = []
        for index, request in enumerate(requests):
            try:
                own = self._triton.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel().tolist()
            except Exception as error:  # each request fails by itself
                responses[index] = self._failure(error)
                continue
            places.append((index, len(texts), len(texts) + len(own)))
            texts += own
        try:
            rows, known = self._engine(texts)
        except Exception as error:
            return [response or self._failure(error) for response in responses]
        tensor, name = self._triton.Tensor, self._engine.output
        for index, start, end in places:
            responses[index] = self._triton.InferenceResponse(
                [tensor(name, rows[start:end]), tensor("KNOWN_WORDS", known[start:end])]
            )
        return responses

    def _failure(self, error: Exception) -> Any:
        """The error as one request's response."""
        message = f"{type(error).__name__}: {error}"
        self._triton.Logger.log_error(f"{self._name}: {message}")
        return self._triton.InferenceResponse(output_tensors=[], error=self._triton.TritonError(message))


def _load(path: Path) -> Any:
    """By path: the module's name could be anyone's where Triton's stub looks."""
    spec = importlib.util.spec_from_file_location("tidegate_text_engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
