"""`imaging.py`: any bytes are the pixels of a whole picture or an `ImageError`, in any company, and never others."""

from __future__ import annotations

import random
import sys
import time
import zlib

import numpy as np

from gateway.errors import ItemProblem
from gateway.images import EncodedImage, ImageLimits, inspect
from tests.fuzz import pictures
from tests.model_repository.picture_files import OK, ROOT, Pixels, decode, imaging, status_of

seeds, mutate = pictures.seeds, pictures.mutate

MAX_PIXELS = 1 << 17
LIMITS = ImageLimits(max_file_bytes=1 << 24, max_pixels=MAX_PIXELS)
RECIPE = imaging.Recipe.from_json((ROOT / "tests" / "triton" / "models" / "probe" / "preprocess.json").read_bytes())
SECONDS = 2.0  # of CPU time; a thousandth of it is usual


def check(data: bytes) -> None:
    before = time.thread_time()
    status = status_of(data, MAX_PIXELS)
    assert time.thread_time() - before < SECONDS
    door = inspect(data, LIMITS)
    _check_kind(data, door)
    if status != OK:
        assert _prepared(data) == status
        return
    pixels = decode(data, MAX_PIXELS)
    _check_pixels(data, pixels)
    _check_cut(data, pixels)
    if isinstance(door, EncodedImage):  # it has counted no fewer pixels than there are
        assert door.width * door.height >= pixels.shape[0] * pixels.shape[1]
    else:  # it may be stricter with headers that contradict themselves, but not about the size
        assert door.code == "corrupt_image" or _is_bigtiff(data), door


def _check_kind(data: bytes, door: EncodedImage | ItemProblem) -> None:
    """Gateway and preprocessor see the same kind of file, or both none that is taken."""
    kind = sys.modules["image_formats"].sniff(data[:256])
    taken = isinstance(door, EncodedImage) or door.code not in ("unsupported_image", "empty_image")
    assert taken == (kind is not None and not (kind == "TIFF" and _is_bigtiff(data))), (kind, door)
    assert not isinstance(door, EncodedImage) or door.kind.upper() == kind


def _is_bigtiff(data: bytes) -> bool:
    """Decoded by the one, not taken by the other."""
    return data[:4] in (b"II+\0", b"MM\0+")


def _check_pixels(data: bytes, pixels: Pixels) -> None:
    """RGB within the cap; the same again, in the middle of other bytes, and in front of more."""
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert 0 < pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS
    kept, prepared = pixels.tobytes(), _prepared(data)
    padded = b"\xff\xd9" + data + bytes(5000)
    view = memoryview(padded)[2 : 2 + len(data)]
    assert decode(view, MAX_PIXELS).tobytes() == kept
    assert isinstance(prepared, bytes)
    assert _prepared(view) == prepared


def _check_cut(data: bytes, pixels: Pixels) -> None:
    """A picture that lost its end is an error, or the same picture where what is lost was none of it."""
    kept = pixels.tobytes()
    rng = random.Random(zlib.crc32(data))
    for end in {len(data) - 1, len(data) - rng.randrange(1, 20), rng.randrange(len(data))}:
        cut = data[: max(0, end)]
        assert status_of(cut, MAX_PIXELS) != OK or decode(cut, MAX_PIXELS).tobytes() == kept, end


def _prepared(data: bytes | memoryview) -> bytes | int:
    """The model's pixels, or the status of the error."""
    try:
        pixels = imaging.preprocess(data, RECIPE, max_pixels=MAX_PIXELS)
    except imaging.ImageError as error:
        return int(error.status)  # type: ignore[attr-defined]  # the protocol knows it as an Exception only
    assert pixels.shape == (RECIPE.size, RECIPE.size, 3)
    return pixels.tobytes()
