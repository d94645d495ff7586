"""Triton's outputs → `Prediction` values and embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BadUpstreamResponse, ItemProblem
from gateway.triton.tensors import CLASSIFICATION, KNOWN_WORDS

NOT_NUMBERS = "NaN, infinity, or a probability below zero"
FINITE = np.finfo(np.float32).max


@dataclass(frozen=True)
class Prediction:
    """One class of one image; `probability` is between 0 and 1."""

    label: str
    class_id: int
    probability: float


def usable_rows(output: str, array: NDArray[np.float32], rows: int, width: int) -> NDArray[np.bool_]:
    """Which rows of an output FP32 `[rows, width]` hold what they should; another shape is `BadUpstreamResponse`.

    NaN and infinities never do, and values below zero are no probabilities. Sums are not looked at: an engine in FP16
    or BF16 rounds them, by how much depends on the number of classes, and a model with a sigmoid for each class has no
    such sum.
    """
    if array.shape != (rows, width):
        raise BadUpstreamResponse(
            "The model's answer does not have the expected shape.",
            private=f"{output} {list(array.shape)}, expected {[rows, width]}",
        )
    least, most = array.min(axis=1), array.max(axis=1)
    usable: NDArray[np.bool_] = (least >= (0 if output == CLASSIFICATION else -FINITE)) & (most <= FINITE)
    return usable  # NaN is neither


def top_k(probabilities: NDArray[np.float32], labels: Sequence[str], k: int, threshold: float) -> list[Prediction]:
    """The `k` most probable classes of one row FP32 `[classes]` that reach `threshold`, largest first.

    Equal probabilities keep the order of their class ids.
    """
    if k < len(probabilities):
        candidates = np.argpartition(probabilities, -k)[-k:]
        # Every class that ties with the k-th is a candidate, so that ties do not depend on the partition.
        candidates = np.flatnonzero(probabilities >= probabilities[candidates].min())
    else:
        candidates = np.arange(len(probabilities))
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")][:k]
    return [
        Prediction(labels[i], i, p)
        for i, p in zip(order.tolist(), probabilities[order].tolist(), strict=True)
        if p >= threshold
    ]


def known_share(values: Mapping[str, NDArray[Any]]) -> float | None:
    """Of a text's words those that the model knows, from 0 to 1; None when the model does not say."""
    if KNOWN_WORDS not in values:
        return None
    share = float(values[KNOWN_WORDS].ravel()[0])
    return share if 0 <= share <= 1 else None


NO_LENGTH = ItemProblem("bad_upstream_response", "The model's answer has no direction, so it has no unit length.")


def unit(embedding: NDArray[np.float32]) -> NDArray[np.float32] | ItemProblem:
    """One row FP32 `[dim]` at unit length (L2)."""
    # In double precision: squares of large features pass what single precision holds.
    length = float(np.linalg.norm(embedding.astype(np.float64)))
    return (embedding / length).astype(np.float32) if length > 0 else NO_LENGTH
