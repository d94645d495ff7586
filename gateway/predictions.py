"""Triton's outputs → `Prediction` values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BadUpstreamResponse

NOT_NUMBERS = "NaN, infinity, or less than zero"


@dataclass(frozen=True)
class Prediction:
    """One class of one image; `probability` is between 0 and 1."""

    label: str
    class_id: int
    probability: float


def usable_rows(array: NDArray[np.float32], rows: int, classes: int) -> NDArray[np.bool_]:
    """Which rows of `array` FP32 `[rows, classes]` hold probabilities; another shape is `BadUpstreamResponse`.

    NaN, infinities and values below zero are none. Sums are not looked at: an engine in FP16 or BF16 rounds them, by
    how much depends on the number of classes, and a model with a sigmoid for each class has no such sum.
    """
    if array.shape != (rows, classes):
        raise BadUpstreamResponse(
            "The model's answer does not have the expected shape.",
            private=f"CLASSIFICATION {list(array.shape)}, expected {[rows, classes]}",
        )
    usable: NDArray[np.bool_] = (array.min(axis=1) >= 0) & (array.max(axis=1) < np.inf)  # NaN is neither
    return usable


def check_probabilities(array: NDArray[np.float32], rows: int, classes: int) -> NDArray[np.float32]:
    """`array` if all its rows are usable; anything else is `BadUpstreamResponse`."""
    if not usable_rows(array, rows, classes).all():
        raise BadUpstreamResponse("The model answered with values that are no probabilities.", private=NOT_NUMBERS)
    return array


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
