"""A Triton in memory, for tests of the HTTP layer: deterministic, instant, and able to fail on request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.errors import DeadlineExceeded, TidegateError
from gateway.triton import Answer, ModelConfig, ModelState, Step, Tensor
from gateway.triton.discovery import CLASSIFICATION, IMAGE_STATUS, RAW_IMAGE


class FakeTriton:
    """Answers `ensemble_model` with probabilities that depend on nothing but each image's own bytes.

    `failure` is raised by every call while it is set; `delay` is the seconds that an inference takes.
    `nan` spoils every row of an answer, `spoilt` those of some files: their first value is the one given.
    `version` is that of every model, and of its labels. `asked` lists the input shapes of the inferences so far.
    `parameters` are those of each model's configuration: the ensemble's, and those of its two steps, where a test
    may put a certificate.
    """

    def __init__(self, classes: int = 10, max_batch: int = 8) -> None:
        self.endpoint = "fake"
        self.classes = classes
        self.max_batch = max_batch
        self.failure: TidegateError | None = None
        self.delay = 0.0
        self.nan = False
        self.spoilt: dict[bytes, float] = {}
        self.version = "1"
        self.asked: list[tuple[int, ...]] = []
        self.parameters: dict[str, dict[str, str]] = {
            "ensemble_model": {"task": "classify"},
            "preprocessor": {"preprocess": "classifier/preprocess.json"},
            "classifier": {},
        }

    async def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout: float,
        top_classes: int = 0,
    ) -> Answer:
        if self.failure:
            raise self.failure
        if self.delay > timeout:
            await asyncio.sleep(timeout)
            raise DeadlineExceeded("The inference server did not answer in time.")
        await asyncio.sleep(self.delay)
        tensors = {tensor.name: tensor for tensor in inputs}
        rows, row_bytes = tensors[RAW_IMAGE].shape
        self.asked.append((rows, row_bytes))
        lengths = np.frombuffer(tensors["IMAGE_LENGTH"].data, dtype="<i4")
        data = tensors[RAW_IMAGE].data
        files = [data[i * row_bytes : i * row_bytes + lengths[i]] for i in range(rows)]
        probabilities = np.stack([self.probabilities(file) for file in files])
        if self.nan:
            probabilities[:] = np.nan
        for row, file in zip(probabilities, files, strict=True):
            row[0] = self.spoilt.get(file, row[0])
        if top_classes:
            order = np.argsort(-probabilities, axis=1)[:, :top_classes]
            strings = [
                [f"{p[k]:f}:{k}:{self._label(k)}".encode() for k in row]
                for p, row in zip(probabilities, order, strict=True)
            ]
            return Answer(self.version, {CLASSIFICATION: np.array(strings, dtype=object)}, self.endpoint)
        statuses = np.zeros((rows, 1), dtype=np.int32)
        return Answer(self.version, {CLASSIFICATION: probabilities, IMAGE_STATUS: statuses}, self.endpoint)

    def _label(self, index: int) -> str:
        return f"class {index}" if self.version == "1" else f"class {index} of version {self.version}"

    def probabilities(self, file: bytes) -> NDArray[np.float32]:
        """FP32 `[classes]` of one file."""
        seed = int.from_bytes(hashlib.sha256(file).digest()[:8], "little")
        weights = np.random.default_rng(seed).random(self.classes)
        probabilities: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
        return probabilities

    async def index(self, *, timeout: float) -> list[ModelState]:
        if self.failure:
            raise self.failure
        return [ModelState(name, self.version, True) for name in self.parameters]

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        classes, status = {CLASSIFICATION: (self.classes,)}, {IMAGE_STATUS: (1,)}
        outputs: dict[str, dict[str, tuple[int, ...]]] = {
            "preprocessor": {"PREPROCESSED_IMAGE": (64, 64, 3), **status},
            "classifier": {**classes},
        }
        steps = (Step("preprocessor"), Step("classifier")) if model == "ensemble_model" else ()
        return ModelConfig(
            model,
            self.max_batch,
            outputs.get(model, {**classes, **status}),
            self.parameters.get(model, {}),
            steps,
        )

    async def close(self) -> None:
        """Nothing is held."""
