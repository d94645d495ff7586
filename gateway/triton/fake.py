"""A Triton in memory, for tests of the HTTP layer: deterministic, instant, and able to fail on request."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.errors import DeadlineExceeded, TidegateError
from gateway.triton import Answer, ModelConfig, ModelState, Step, Tensor
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING, IMAGE_STATUS, KNOWN_WORDS, RAW_IMAGE, TEXT

_KNOWN = {b"unknown": 0, b"unread": -1}


class FakeTriton:
    """Answers `ensemble_model` with probabilities that depend on nothing but each image's own bytes.

    `failure` is raised by every call while it is set; `delay` is the seconds that an inference takes.
    `nan` spoils every row of an answer, `spoilt` those of some files: their first value is the one given.
    `version` is that of every model, and of its labels; `versions` are those of single models. `asked` lists the input
    shapes of the inferences so far.
    `parameters` are those of each model's configuration: the ensemble's, and those of its two steps, where a test
    may put a certificate; `serve` adds models for other tasks. The text "unknown" has no word that they
    know, and "unread" is longer than they read.
    """

    def __init__(self, classes: int = 10, max_batch: int = 8, dim: int = 6) -> None:
        self.endpoint = "fake"
        self.classes = classes
        self.max_batch = max_batch
        self.dim = dim
        self.failure: TidegateError | None = None
        self.delay = 0.0
        self.nan = False
        self.spoilt: dict[bytes, float] = {}
        self.version = "1"
        self.versions: dict[str, str] = {}
        self.asked: list[tuple[int, ...]] = []
        self.parameters: dict[str, dict[str, str]] = {
            "ensemble_model": {"task": "classify"},
            "preprocessor": {"preprocess": "classifier/preprocess.json"},
            "classifier": {},
        }

    def serve(self, name: str, task: str, **parameters: str) -> None:
        """One more model that callers can name; the parameter `only` names the one output that it has."""
        self.parameters[name] = {"task": task, **parameters}

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
        items = _items({tensor.name: tensor for tensor in inputs})
        self.asked.append((len(items), max(map(len, items))))
        version = self.versions.get(model, self.version)
        probabilities = np.stack([self.probabilities(item) for item in items])
        if self.nan:
            probabilities[:] = np.nan
        for row, item in zip(probabilities, items, strict=True):
            row[0] = self.spoilt.get(item, row[0])
        if top_classes:
            order = np.argsort(-probabilities, axis=1)[:, :top_classes]
            strings = [
                [f"{p[k]:f}:{k}:{self._label(k, version)}".encode() for k in row]
                for p, row in zip(probabilities, order, strict=True)
            ]
            return Answer(version, {CLASSIFICATION: np.array(strings, dtype=object)}, self.endpoint)
        answers = {
            CLASSIFICATION: probabilities,
            EMBEDDING: probabilities[:, : self.dim],
            IMAGE_STATUS: np.zeros((len(items), 1), dtype=np.int32),
            KNOWN_WORDS: np.array([[_KNOWN.get(item, 1)] for item in items], dtype=np.float32),
        }
        return Answer(version, {name: answers[name] for name in outputs}, self.endpoint)

    def _label(self, index: int, version: str) -> str:
        return f"class {index}" if version == "1" else f"class {index} of version {version}"

    def probabilities(self, item: bytes) -> NDArray[np.float32]:
        """FP32 `[classes]` of one file or text."""
        seed = int.from_bytes(hashlib.sha256(item).digest()[:8], "little")
        weights = np.random.default_rng(seed).random(self.classes)
        probabilities: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
        return probabilities

    async def index(self, *, timeout: float) -> list[ModelState]:
        if self.failure:
            raise self.failure
        return [ModelState(name, self.versions.get(name, self.version), True) for name in self.parameters]

    async def config(self, model: str, *, timeout: float) -> ModelConfig:
        classes, status = {CLASSIFICATION: (self.classes,)}, {IMAGE_STATUS: (1,)}
        features, known = {EMBEDDING: (self.dim,)}, {KNOWN_WORDS: (1,)}
        parameters = self.parameters.get(model, {})
        outputs: dict[str, dict[str, tuple[int, ...]]] = {
            "preprocessor": {"PREPROCESSED_IMAGE": (64, 64, 3), **status},
            "classifier": {**classes},
            "embed": {**features, **classes, **status},
            "text_classify": {**classes, **known},
            "text_embed": {**features, **known},
        }
        steps = (Step("preprocessor"), Step("classifier")) if model == "ensemble_model" else ()
        given = outputs.get(model, outputs.get(parameters.get("task", ""), {**classes, **status}))
        if "only" in parameters:
            given = {name: shape for name, shape in given.items() if name in (parameters["only"], IMAGE_STATUS)}
        return ModelConfig(model, self.max_batch, given, parameters, steps)

    async def close(self) -> None:
        """Nothing is held."""


def _items(tensors: dict[str, Tensor]) -> list[bytes]:
    """The files or texts in a request's tensors."""
    if TEXT in tensors:
        data, at, texts = tensors[TEXT].data, 0, []
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            texts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        return texts
    rows, row_bytes = tensors[RAW_IMAGE].shape
    lengths = np.frombuffer(tensors["IMAGE_LENGTH"].data, dtype="<i4")
    data = tensors[RAW_IMAGE].data
    return [data[i * row_bytes : i * row_bytes + lengths[i]] for i in range(rows)]
