"""Small pictures made on the spot."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Colour = tuple[int, int, int]

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def solid(colour: Colour, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """A picture of one colour; size is (width, height)."""
    return Image.new("RGB", size, colour)


def quadrants(a: Colour, b: Colour, c: Colour, d: Colour, side: int = 64) -> Image.Image:
    """Four colours: top left, top right, bottom left, bottom right."""
    half = side // 2
    picture = Image.new("RGB", (side, side))
    for colour, at in zip((a, b, c, d), ((0, 0), (half, 0), (0, half), (half, half)), strict=True):
        picture.paste(colour, (*at, at[0] + half, at[1] + half))
    return picture


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Random pixels: a file that does not compress."""
    pixels: NDArray[np.uint8] = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encode(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The picture as a file of a kind that Pillow writes."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()
