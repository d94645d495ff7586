"""The pictures of `extractor.ipynb`, for who has no labelled folder at hand: cuttings of photos, and drawn patterns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

PHOTOS = Path(__file__).parent / "photos"
Pattern = NDArray[np.float64]


def make_pictures(folder: Path, *, of_each: int = 22, photos: Path = PHOTOS, seed: int = 7) -> None:
    """Writes `of_each` JPEGs of every class into a sub-folder of its name; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    for photo in sorted(photos.glob("*.jpg")):
        with Image.open(photo) as picture:
            whole = picture.convert("RGB")
        for number in range(of_each):
            _save(cutting(whole, random), folder / photo.stem, number)
    for family, pattern in FAMILIES.items():
        for number in range(of_each):
            _save(drawing(pattern, random), folder / family, number)


def _save(picture: Image.Image, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / f"{folder.name}-{number:02}.jpg", quality=85)


def cutting(photo: Image.Image, random: np.random.Generator) -> Image.Image:
    """A piece of a photo, at times mirrored, darker or brighter than it was."""
    side = int(min(photo.size) * random.uniform(0.25, 0.9))
    left, top = (int(random.integers(0, whole - side + 1)) for whole in photo.size)
    piece = photo.crop((left, top, left + side, top + side)).resize((192, 192), Image.Resampling.BICUBIC)
    if random.random() < 0.5:
        piece = piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return ImageEnhance.Brightness(piece).enhance(random.uniform(0.55, 1.4))


def drawing(
    pattern: Callable[[NDArray[np.float64], NDArray[np.float64], np.random.Generator], Pattern],
    random: np.random.Generator,
) -> Image.Image:
    """A pattern in two colours that differ, with noise, in one of many sizes.

    `pattern` takes places, FP64 [size, size] each, with 0 in the middle, and gives the second colour's share, 0 to 1.
    """
    size = int(random.integers(112, 225))
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    angle = random.uniform(0, np.pi)
    share = pattern(x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle), random)
    while True:
        colours = random.uniform(0, 255, (2, 3))
        if np.abs(colours[0] - colours[1]).sum() > 120:
            break
    picture = colours[0] + share[..., None] * (colours[1] - colours[0])
    noise = random.normal(0, random.uniform(2, 60), picture.shape)
    return Image.fromarray(np.clip(picture + noise, 0, 255).astype(np.uint8))


def _edge(height: Pattern) -> Pattern:
    """1 above 0 and 0 below, softened as a camera would."""
    return np.clip(height * 4 + 0.5, 0, 1)


def stripes(x: Pattern, y: Pattern, random: np.random.Generator) -> Pattern:
    return _edge(np.sin(2 * np.pi * random.uniform(2, 14) * x + random.uniform(0, 6)))


def checks(x: Pattern, y: Pattern, random: np.random.Generator) -> Pattern:
    often = 2 * np.pi * random.uniform(1.5, 9)
    return _edge(4 * np.sin(often * x) * np.sin(often * y))


def dots(x: Pattern, y: Pattern, random: np.random.Generator) -> Pattern:
    often, radius = random.uniform(2, 12), random.uniform(0.2, 0.45)
    across, down = (x * often) % 1 - 0.5, (y * often) % 1 - 0.5
    return _edge((radius - np.hypot(across, down)) * 4)


def rings(x: Pattern, y: Pattern, random: np.random.Generator) -> Pattern:
    distance = np.hypot(x - random.uniform(-0.4, 0.4), y - random.uniform(-0.4, 0.4))
    return _edge(np.sin(2 * np.pi * random.uniform(2, 14) * distance + random.uniform(0, 6)))


def gradients(x: Pattern, y: Pattern, random: np.random.Generator) -> Pattern:
    return np.clip(x * random.uniform(0.7, 1.4) + 0.5, 0, 1)


FAMILIES = {"checks": checks, "dots": dots, "gradients": gradients, "rings": rings, "stripes": stripes}
