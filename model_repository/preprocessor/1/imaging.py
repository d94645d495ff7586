"""Bytes of an image file → the pixels that a model sees.

The only interpreter of `preprocess.json`: Triton, calibration and parity checks all load this file, by path.
The pixels are those of the reference pipeline (Pillow: upright, RGB, resize antialiased, crop) to within
2 of 255; only the part of the picture that the crop keeps is resized, and it is turned when it is small.
A recipe with `jpeg_quality` gets that pipeline itself, pixel for pixel: a JPEG makes 22 of 255 out of those 2.
"""

import hashlib
import io
import json
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
from cykooz_resizer import CropBox, FilterType, ResizeAlg, ResizeOptions
from cykooz_resizer.rust_lib import PilImageWrapper, RustResizer
from PIL import Image, JpegImagePlugin

sys.path.insert(0, str(Path(__file__).parent))  # wherever this file was loaded from, the folder is beside it
try:
    from image_formats import ImageError, Status, costs_little, only_image_errors, read
finally:
    del sys.path[0]

__all__ = ["ImageError", "Recipe", "Status", "costs_little", "decode", "preprocess"]

Pixels = npt.NDArray[np.uint8]

Transpose = Image.Transpose

_OPTIONAL = frozenset({"jpeg_quality"})
_NORMALISATION = frozenset({"mean", "std"})

_MAX_SIDE = 4096  # of a model's input; keeps a typing error in a recipe from eating all memory
# (Pillow's name, the resizer's filter, its reach in output pixels). Catmull-Rom is bicubic with a = -0.5.
_FILTERS = {
    "bicubic": (FilterType.catmull_rom, 2),
    "bilinear": (FilterType.bilinear, 1),
}
_PILLOWS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_WHOLE = 1 << 22  # pixels: 64 times as long as wide, at 256; of longer pictures only the crop's part is resized
# EXIF orientation → what makes the picture upright, and what that does to the axes: swaps them, then mirrors
# left and right, then top and bottom.
_TURNS = {
    1: (None, False, False, False),
    2: (Transpose.FLIP_LEFT_RIGHT, False, True, False),
    3: (Transpose.ROTATE_180, False, True, True),
    4: (Transpose.FLIP_TOP_BOTTOM, False, False, True),
    5: (Transpose.TRANSPOSE, True, False, False),
    6: (Transpose.ROTATE_270, True, True, False),
    7: (Transpose.TRANSVERSE, True, True, True),
    8: (Transpose.ROTATE_90, True, False, True),
}
# Since 13, Pillow (libImaging/Resample.c) resizes columns before rows where heights shrink most. It rounds in
# between, so on such pictures its versions differ by up to 20 of 255; the one that is installed is the reference.
_TALL_FIRST = int(PIL.__version__.split(".")[0]) >= 13
_SLIVER = 20_000  # pixels; taller pictures might need gigabytes in between, if rows came first


@dataclass(frozen=True)
class Recipe:
    """What `preprocess.json` beside a model says; README.md of the model repository explains the keys.

    mean and std are carried for the engine builder: normalisation is part of the engine.
    """

    resize: str
    resize_to: int
    interpolation: str
    crop: str
    size: int
    color: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    jpeg_quality: int | None = None

    @property
    def pixels_sha256(self) -> str:
        """Of all that the pixels depend on, in hexadecimal: recipes that differ in mean and std only have the same.

        Keys at their default count as absent.
        """
        part = {key: value for key, value in vars(self).items() if key not in _NORMALISATION and value is not None}
        return hashlib.sha256(json.dumps(part, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Recipe":
        """Parse and check; raises ValueError that says what is wrong."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("preprocess.json must hold one object")
        known = {field.name for field in fields(cls)}
        if unknown := found.keys() - known:
            raise ValueError(f"preprocess.json has unknown keys: {', '.join(sorted(unknown))}")
        if missing := known - _OPTIONAL - found.keys():
            raise ValueError(f"preprocess.json lacks keys: {', '.join(sorted(missing))}")
        recipe = cls(
            resize=_choice(found, "resize", "shorter", "squash"),
            resize_to=_side(found, "resize_to"),
            interpolation=_choice(found, "interpolation", *_FILTERS),
            crop=_choice(found, "crop", "center", "none"),
            size=_side(found, "size"),
            color=_choice(found, "color", "RGB", "BGR"),
            mean=_triple(found, "mean"),
            std=_triple(found, "std"),
            jpeg_quality=_quality(found, "jpeg_quality"),
        )
        if min(recipe.std) <= 0:
            raise ValueError("preprocess.json: std must be above 0")
        if recipe.crop == "center" and recipe.size > recipe.resize_to:
            raise ValueError("preprocess.json: size must not be larger than resize_to, or the crop has no pixels")
        if recipe.crop == "none" and (recipe.resize != "squash" or recipe.size != recipe.resize_to):
            raise ValueError('preprocess.json: crop "none" needs resize "squash" and resize_to equal to size')
        return recipe


def _choice(found: dict[str, object], key: str, *allowed: str) -> str:
    value = found[key]
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"preprocess.json: {key} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _side(found: dict[str, object], key: str) -> int:
    value = found[key]
    if type(value) is not int or not 1 <= value <= _MAX_SIDE:
        raise ValueError(f"preprocess.json: {key} must be a whole number from 1 to {_MAX_SIDE}, not {value!r}")
    return value


def _quality(found: dict[str, object], key: str) -> int | None:
    value = found.get(key)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= 100:
        raise ValueError(f"preprocess.json: {key} must be a whole number from 1 to 100, or null, not {value!r}")
    return value


def _triple(found: dict[str, object], key: str) -> tuple[float, float, float]:
    value = found[key]
    if isinstance(value, list) and len(value) == 3:
        numbers = [float(v) for v in value if type(v) in (int, float) and math.isfinite(v)]
        if len(numbers) == 3:
            return numbers[0], numbers[1], numbers[2]
    raise ValueError(f"preprocess.json: {key} must be a list of 3 numbers, not {value!r}")


def decode(data: bytes | memoryview, *, max_pixels: int) -> Pixels:
    """Decode an image file: (height, width, 3) uint8 RGB, upright, alpha on white; read-only.

    `max_pixels` bounds width × height, which is read from the header first.
    Raises ImageError, and nothing else, for any bytes whatever.
    """
    image, orientation = read(data, max_pixels)
    with only_image_errors():  # a lack of memory, for one
        if image.mode != "RGB":
            image = Image.merge("RGB", image.split()[:3])
        return np.asarray(_turned(image, orientation))


def preprocess(data: bytes | memoryview, recipe: Recipe, *, max_pixels: int) -> Pixels:
    """Decode an image file and prepare it for a model: (size, size, 3) uint8 in its colour order; read-only.

    Raises ImageError, and nothing else, for any bytes whatever. Safe to call from many threads.
    """
    image, orientation = read(data, max_pixels)
    with only_image_errors():
        if recipe.jpeg_quality is None:
            image = _turned(_resized_crop(image, orientation, recipe), orientation)
        else:
            image = _through_jpeg(_pillows_crop(_turned(image, orientation), recipe), recipe.jpeg_quality)
        if recipe.color == "BGR":
            image = Image.merge("RGB", image.split()[::-1])
        return np.asarray(image)


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    turn = _TURNS[orientation][0]
    return image if turn is None else image.transpose(turn)


def _resized_crop(image: Image.Image, orientation: int, recipe: Recipe) -> Image.Image:
    """Resize and crop a stored picture so that, once turned, it is the upright picture resized and cropped."""
    _, swap, mirror_x, mirror_y = _TURNS[orientation]
    width, height = image.size[::-1] if swap else image.size
    full_width, full_height = _target(width, height, recipe)
    # torchvision's rounding (transforms.functional.center_crop), half to even
    left = round((full_width - recipe.size) / 2)
    top = round((full_height - recipe.size) / 2)
    tall = height - full_height > max(0, 2 * (width - full_width))
    columns_first = tall and (_TALL_FIRST or height > _SLIVER)
    if mirror_x:
        left = full_width - recipe.size - left
    if mirror_y:
        top = full_height - recipe.size - top
    filter_type, radius = _FILTERS[recipe.interpolation]
    x = _Span.of(width, full_width, left, recipe.size, radius)
    y = _Span.of(height, full_height, top, recipe.size, radius)
    if swap:
        x, y, columns_first = y, x, not columns_first
    return _resample(image, x, y, recipe.size, filter_type, columns_first)


def _pillows_crop(image: Image.Image, recipe: Recipe) -> Image.Image:
    """An upright picture as Pillow resizes the whole of it, cropped: mode "RGB"."""
    full_width, full_height = _target(*image.size, recipe)
    left = round((full_width - recipe.size) / 2)
    top = round((full_height - recipe.size) / 2)
    right, bottom = left + recipe.size, top + recipe.size
    method = _PILLOWS[recipe.interpolation]
    if full_width * full_height <= max(_WHOLE, recipe.resize_to**2):
        crop = image.resize((full_width, full_height), method).crop((left, top, right, bottom))
    else:
        x, y = image.width / full_width, image.height / full_height
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        crop = image.resize((recipe.size, recipe.size), method, box)
    return crop if crop.mode == "RGB" else Image.merge("RGB", crop.split()[:3])


def _through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    """What is left of a picture after a JPEG with Pillow's defaults: 4:2:0, baseline."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    file.seek(0)
    return JpegImagePlugin.JpegImageFile(file)


def _target(width: int, height: int, recipe: Recipe) -> tuple[int, int]:
    """Size of the whole upright picture after the resize, as torchvision computes it."""
    if recipe.resize == "squash":
        return recipe.resize_to, recipe.resize_to
    short, long = sorted((width, height))
    longer = int(recipe.resize_to * long / short)
    return (recipe.resize_to, longer) if width <= height else (longer, recipe.resize_to)


@dataclass(frozen=True)
class _Span:
    """What one axis of the crop takes from the source, in source pixels."""

    start: float
    length: float
    first: int  # the first and the number of pixels that the kernel reaches
    count: int

    @classmethod
    def of(cls, source: int, full: int, offset: int, size: int, radius: int) -> "_Span":
        scale = source / full
        start = offset * scale
        length = min(size * scale, source - start)
        reach = radius * max(scale, 1.0) + 1
        first = max(0, math.floor(start - reach))
        return cls(start, length, first, min(source, math.ceil(start + length + reach)) - first)


def _resample(
    image: Image.Image, x: _Span, y: _Span, size: int, filter_type: FilterType, columns_first: bool
) -> Image.Image:
    """One axis after the other: in one go the resizer takes columns first, up to 20 of 255 away from Pillow."""
    if columns_first:
        between = Image.new("RGB", (x.count, size), None)
        box = CropBox(x.first, y.start, x.count, y.length)
        box_between = CropBox(x.start - x.first, 0, x.length, size)
    else:
        between = Image.new("RGB", (size, y.count), None)
        box = CropBox(x.start, y.first, x.length, y.count)
        box_between = CropBox(0, y.start - y.first, size, y.length)
    resized = Image.new("RGB", (size, size), None)
    for source, target, part in ((image, between, box), (between, resized, box_between)):
        options = ResizeOptions(ResizeAlg.convolution(filter_type), use_alpha=False, crop_box=part)
        # Beneath Resizer.resize_pil, which would convert first where modes differ: all are four bytes a pixel.
        RustResizer().resize_pil(PilImageWrapper(source), PilImageWrapper(target), options.rust_options)
    return resized
