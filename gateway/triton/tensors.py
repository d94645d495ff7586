"""The tensors that models take and give, by name, as model_repository/README.md has them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.triton import Tensor

RAW_IMAGE, IMAGE_LENGTH = "RAW_IMAGE", "IMAGE_LENGTH"
TEXT = "TEXT"
CLASSIFICATION, EMBEDDING = "CLASSIFICATION", "EMBEDDING"
IMAGE_STATUS, KNOWN_WORDS = "IMAGE_STATUS", "KNOWN_WORDS"


def image_tensors(rows: int, row_bytes: int, data: bytes, lengths: NDArray[np.integer[Any]]) -> tuple[Tensor, ...]:
    """What a model of images takes: `data` is `rows` × `row_bytes` padded files, `lengths` INT32 `[rows, 1]`."""
    return (
        Tensor(RAW_IMAGE, "UINT8", (rows, row_bytes), data),
        Tensor(IMAGE_LENGTH, "INT32", (rows, 1), lengths.astype("<i4").tobytes()),
    )


def text_tensors(texts: Sequence[bytes]) -> tuple[Tensor, ...]:
    """What a model of texts takes: `TEXT` BYTES `[N, 1]`, each behind its length as Triton packs strings."""
    data = b"".join(piece for text in texts for piece in (struct.pack("<I", len(text)), text))
    return (Tensor(TEXT, "BYTES", (len(texts), 1), data),)


def _grey_png(side: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([128]) * side) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PROBE_PICTURE = _grey_png(16)
"""A grey PNG of 16×16 pixels, under 100 bytes: the smallest honest question."""
PROBE_TEXT = b"probe"
