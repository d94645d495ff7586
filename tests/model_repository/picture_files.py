"""`imaging.py`, loaded as Triton and the engine builder load it, and files made by hand to try it on."""

from __future__ import annotations

import importlib.util
import struct
import sys
import zlib
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
Colour = tuple[int, ...] | str | float

ROOT = Path(__file__).parents[2]
PREPROCESSOR = ROOT / "model_repository" / "preprocessor" / "1"
PHOTOS = ROOT.parent / "shared" / "data" / "photos"
MAX_PIXELS = 1 << 20

OK, EMPTY, UNSUPPORTED, CORRUPT, TOO_LARGE = range(5)


class Recipe(Protocol):
    resize: str
    resize_to: int
    interpolation: str
    crop: str
    size: int
    color: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    jpeg_quality: int | None

    @property
    def pixels_sha256(self) -> str: ...


class RecipeType(Protocol):
    def from_json(self, text: str | bytes) -> Recipe: ...


_Recipe = Recipe  # inside the protocol below the name means the class that makes one


class Imaging(Protocol):
    """The public names of `imaging.py`."""

    Recipe: RecipeType
    ImageError: type[Exception]

    def costs_little(self, data: bytes | memoryview) -> bool: ...
    def decode(self, data: bytes | memoryview, *, max_pixels: int) -> Pixels: ...
    def preprocess(self, data: bytes | memoryview, recipe: _Recipe, *, max_pixels: int) -> Pixels: ...


def load_by_path(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


imaging = cast(Imaging, load_by_path(PREPROCESSOR / "imaging.py", "imaging_under_test"))


def decode(data: bytes | memoryview, max_pixels: int = MAX_PIXELS) -> Pixels:
    return imaging.decode(data, max_pixels=max_pixels)


def status_of(data: bytes | memoryview, max_pixels: int = MAX_PIXELS) -> int:
    """OK or the status of the error."""
    try:
        decode(data, max_pixels)
    except imaging.ImageError as error:
        return int(error.status)  # type: ignore[attr-defined]  # the protocol knows it as an Exception only
    return OK


def colour_of(data: bytes) -> list[int]:
    """The one colour of a picture that has but one, give or take 1."""
    pixels = decode(data)
    assert int(np.ptp(pixels.reshape(-1, 3).astype(int), axis=0).max()) <= 1
    return [int(v) for v in pixels[0, 0]]


def flat(colour: Colour, mode: str = "RGB", size: tuple[int, int] = (16, 12)) -> Image.Image:
    """A picture of one colour in any of Pillow's modes."""
    return Image.new(mode, size, colour)


def scene(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """Gradients, edges and noise: something that compresses like a photo and tells every pixel's place."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 // width, y * 255 // height, (x // 8 + y // 8) % 2 * 200], axis=2)
    noise = np.random.default_rng(seed).integers(-20, 21, base.shape)
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def exif(orientation: int) -> Image.Exif:
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour_type: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand; `rows` as they are before compression, each with its filter byte."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in body)


def tiff(width: int, height: int, pixels: bytes, tags: dict[int, int | tuple[int, ...]]) -> bytes:
    """A little-endian TIFF by hand: one strip, the given tags (all SHORT) beside the necessary ones."""
    given: dict[int, int | tuple[int, ...]] = {
        256: width,
        257: height,
        259: 1,
        262: 1,
        277: 1,
        278: height,
        279: len(pixels),
    }
    given |= {273: 0, **tags}
    entries, extra = b"", b""
    after = 8 + 2 + 12 * len(given) + 4
    arrays = sum(2 * len(v) for v in given.values() if isinstance(v, tuple) and len(v) > 2)
    given[273] = after + arrays
    for tag, value in sorted(given.items()):
        values = value if isinstance(value, tuple) else (value,)
        packed = struct.pack(f"<{len(values)}H", *values)
        if len(packed) > 4:
            packed, extra = struct.pack("<I", after + len(extra)), extra + packed
        entries += struct.pack("<HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(given)) + entries + bytes(4) + extra + pixels
