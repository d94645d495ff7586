"""What a network of unknown making gives: rows of numbers, and whether they are probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from build_engines.errors import SourceError

Row = npt.NDArray[np.float32]


def synthetic_pictures(size: int) -> npt.NDArray[np.uint8]:
    """Three, always the same: black, two crossed ramps, and noise. UINT8 [3, size, size, 3]."""
    ramp = np.linspace(0, 255, size, dtype=np.uint8)
    crossed = np.stack([*np.meshgrid(ramp, ramp), np.full((size, size), 128, np.uint8)], axis=-1)
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return np.stack([np.zeros_like(noise), crossed, noise])


def tried(run: Callable[[npt.NDArray[np.uint8]], Row], size: int, name: str) -> Row:
    """What `run` gives for `synthetic_pictures`; `SourceError` when it is not one finite row for each."""
    given = synthetic_pictures(size)
    answers = run(given)
    if answers.ndim != 2 or len(answers) != len(given):
        raise SourceError(f"{name} gives {list(answers.shape)} for {len(given)} pictures: needed is one row for each.")
    if not np.isfinite(answers).all():
        raise SourceError(f"{name} gives numbers that are not finite.")
    return answers


def are_probabilities(answers: Row, name: str) -> bool:
    """Whether rows [N, classes] are already behind a softmax.

    Raises `SourceError` when they are neither that nor logits: a single score, or one score for each class from
    0 to 1, which a softmax would spoil.
    """
    if answers.shape[1] < 2:
        raise SourceError(f"{name} gives a single number, and a classifier has at least 2 classes.")
    inside = bool((answers >= 0).all())
    if inside and np.allclose(answers.sum(axis=1), 1, atol=1e-3):
        return True
    if inside and bool((answers <= 1).all()):
        raise SourceError(f"{name} gives scores from 0 to 1 that do not sum to 1: probabilities or logits are needed.")
    return False


def softmax(logits: Row) -> Row:
    """Over the classes."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float32)
