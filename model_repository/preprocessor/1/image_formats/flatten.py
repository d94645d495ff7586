"""A loaded Pillow picture of any mode → mode "RGB", on white."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, PngImagePlugin

from .errors import ImageError, Status

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262  # TIFF 6.0, section 8
_STRIP = 4_000_000  # pixels
_PLAIN = frozenset({"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"})


def flatten(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Grey becomes R=G=B, 16 bits become their upper 8, colour profiles are ignored, alpha goes on white.

    `data` is the file the picture was loaded from. Raises ImageError for kinds of pixels that are not taken.
    """
    if image.mode.startswith("I;16"):
        return _grey16(image)
    key = image.info.get("transparency")
    if image.format == "PNG" and key is not None:
        depth = data[24]
        if depth == 16 and image.mode == "RGB":
            return _rgb16(image, key, data)
        if depth in (2, 4) and image.mode == "L":  # Pillow has widened the pixels, but not the key
            image.info["transparency"] = key * 255 // (2**depth - 1)
    if image.has_transparency_data:
        return _on_white(image)
    if image.mode not in _PLAIN:
        raise ImageError(Status.UNSUPPORTED, f"pixels of mode {image.mode}")
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """In strips, because the largest pictures cost a quarter of a gigabyte for each copy."""
    white = Image.new("RGB", image.size, "white")
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white.paste(strip, (0, top), strip)
    return white


def _grey16(image: ImageFile.ImageFile) -> Image.Image:
    """16-bit and 12-bit grey; Pillow's own conversion clips at 255."""
    wide = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    narrow = (wide >> (tags.get(_BITS_PER_SAMPLE, (16,))[0] - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:
        narrow = 255 - narrow
    if (key := image.info.get("transparency")) is not None:
        narrow[wide == key] = 255
    return Image.fromarray(narrow).convert("RGB")


def _rgb16(image: ImageFile.ImageFile, key: tuple[int, int, int], data: bytes) -> Image.Image:
    """16-bit RGB with a transparent colour: Pillow drops the lower bytes, by which the key must be compared."""
    low = PngImagePlugin.PngImageFile(io.BytesIO(data))
    low.tile = [tile._replace(args="RGB;16L") for tile in low.tile]
    low.load()
    upper: npt.NDArray[np.uint8] = np.array(image)
    wanted = np.array(key)
    upper[((upper == wanted >> 8) & (np.asarray(low) == wanted & 255)).all(axis=2)] = 255
    return Image.fromarray(upper)
