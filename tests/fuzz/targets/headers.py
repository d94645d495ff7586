"""`gateway.images.inspect`: any bytes are a picture of one kind and size or a problem, soon, and always the same."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from gateway.errors import ItemProblem
from gateway.images import EncodedImage, ImageLimits, inspect
from tests.fuzz import pictures

seeds, mutate = pictures.seeds, pictures.mutate

LIMITS = ImageLimits(max_file_bytes=1 << 20, max_pixels=1 << 20)
CODES = {"empty_image", "file_too_large", "unsupported_image", "corrupt_image", "image_too_large"}
GROWN_BYTES = 1 << 18
SECONDS = 0.5  # of CPU time, for GROWN_BYTES; 0.01 are usual


def check(data: bytes) -> None:
    found = inspect(data, LIMITS)
    assert inspect(data, LIMITS) == found
    if isinstance(found, ItemProblem):
        assert found.code in CODES
        if found.code == "image_too_large":  # that and nothing else is wrong with it
            grown = inspect(data, replace(LIMITS, max_pixels=1 << 64))
            if isinstance(grown, EncodedImage):
                assert grown.width * grown.height > LIMITS.max_pixels
            else:  # one side alone is too long
                assert grown.code == "image_too_large"
    else:
        _check_image(data, found)
    if random.Random(len(data)).random() < 0.03:
        _check_time(data)


def _check_image(data: bytes, image: EncodedImage) -> None:
    pixels = image.width * image.height
    assert image.data == data
    assert min(image.width, image.height) > 0
    assert pixels <= LIMITS.max_pixels
    assert inspect(data, replace(LIMITS, max_pixels=pixels)) == image
    refused = inspect(data, replace(LIMITS, max_pixels=pixels - 1))
    assert isinstance(refused, ItemProblem)
    assert refused.code == "image_too_large"
    longer = inspect(data + bytes(100), LIMITS)  # what follows a whole file does not matter
    assert isinstance(longer, EncodedImage)
    assert (longer.kind, longer.width, longer.height) == (image.kind, image.width, image.height)


def _check_time(data: bytes) -> None:
    """The same with its last parts repeated, again and again, takes no longer than its length lets expect."""
    for start in (len(data) // 2, max(0, len(data) - 16), max(0, len(data) - 4)):
        tail = data[start:] or b"\0"
        grown = data + tail * ((GROWN_BYTES - len(data)) // len(tail))
        before = time.thread_time()
        inspect(grown, LIMITS)
        assert time.thread_time() - before < SECONDS
