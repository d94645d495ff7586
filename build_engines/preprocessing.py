"""The part of a classifier's `preprocess.json` that its graph needs: size, colour order, mean and std.

Resizing and cropping are the preprocessor's part of the same file (`model_repository/preprocessor`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from build_engines.errors import SourceError


@dataclass(frozen=True)
class Normalisation:
    """How UINT8 pixels become the network's input: `(pixel - mean) / std` for each of three channels."""

    size: int
    """Height and width in pixels."""
    color: str
    """The order of the channels, "RGB" or "BGR"."""
    mean: tuple[float, float, float]
    """In units of pixel values, 0 to 255, in the order of `color`."""
    std: tuple[float, float, float]
    """In units of pixel values; none is 0."""


def read_normalisation(content: bytes) -> Normalisation:
    """Reads the content of a `preprocess.json`; `SourceError` when a value is missing or makes no sense."""
    try:
        values = json.loads(content)
        size, color = int(values["size"]), str(values["color"])
        mean, std = _channels(values["mean"]), _channels(values["std"])
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"preprocess.json cannot be used ({type(error).__name__}: {error}): "
            "it must give size and color, and mean and std as three numbers each."
        ) from error
    if size < 1 or 0.0 in std:
        raise SourceError("preprocess.json cannot be used: size must be at least 1, and no std may be 0.")
    return Normalisation(size, color, mean, std)


def _channels(values: object) -> tuple[float, float, float]:
    if not isinstance(values, list):
        raise TypeError("not a list")
    red, green, blue = map(float, values)
    if not all(map(math.isfinite, (red, green, blue))):
        raise ValueError("not finite")
    return red, green, blue
