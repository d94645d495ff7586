"""Encoded images → padded byte arrays with true lengths, in batches whose padding stays small; texts as they are.

Triton wants one rectangle a request: `RAW_IMAGE` UINT8 `[N, L]`, every file padded with zeros to the longest.
Files of one size class travel together, so that one large photo does not blow up its small neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.triton import Tensor
from gateway.triton.tensors import image_tensors, text_tensors

# A batch is cut where its padding would pass this share of its payload (plus a little, so that the first
# few small files are not sent one by one): copying a padded byte costs as much as copying a real one.
MAX_PADDING_SHARE = 0.10
FREE_PADDING_BYTES = 64 * 1024


@dataclass(frozen=True)
class ImageBatch:
    """One Triton request: `indices` says which images of the caller's list its rows are."""

    indices: tuple[int, ...]
    data: bytes  # N × L, row after row
    lengths: NDArray[np.int32]  # INT32 [N, 1]
    row_bytes: int  # L

    @property
    def payload_bytes(self) -> int:
        return int(self.lengths.sum())

    @property
    def padding_bytes(self) -> int:
        return len(self.data) - self.payload_bytes

    def tensors(self) -> tuple[Tensor, ...]:
        return image_tensors(len(self.indices), self.row_bytes, self.data, self.lengths)


@dataclass(frozen=True)
class TextBatch:
    """One Triton request: `indices` says which texts of the caller's list its rows are. Strings need no padding."""

    indices: tuple[int, ...]
    texts: tuple[bytes, ...]
    padding_bytes: int = 0

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.texts))

    def tensors(self) -> tuple[Tensor, ...]:
        return text_tensors(self.texts)


Batch = ImageBatch | TextBatch


def make_text_batches(texts: Sequence[tuple[int, bytes]], max_batch: int) -> list[TextBatch]:
    """Batches of at most `max_batch` rows that hold every `(index, text)` once, in order."""
    parts = [texts[start : start + max_batch] for start in range(0, len(texts), max_batch)]
    return [TextBatch(tuple(index for index, _ in part), tuple(text for _, text in part)) for part in parts]


def make_image_batches(files: Sequence[tuple[int, bytes]], max_batch: int) -> list[ImageBatch]:
    """Batches of at most `max_batch` rows that hold every `(index, file)` once, files of like size together."""
    batches: list[ImageBatch] = []
    rows: list[tuple[int, bytes]] = []
    payload = longest = 0
    for index, file in sorted(files, key=lambda f: len(f[1]), reverse=True):
        padding = longest * (len(rows) + 1) - payload - len(file)
        if rows and (
            len(rows) == max_batch or padding > FREE_PADDING_BYTES + MAX_PADDING_SHARE * (payload + len(file))
        ):
            batches.append(_pad(rows))
            rows, payload = [], 0
        if not rows:
            longest = len(file)
        rows.append((index, file))
        payload += len(file)
    if rows:
        batches.append(_pad(rows))
    return batches


def _pad(rows: list[tuple[int, bytes]]) -> ImageBatch:
    longest = max(len(file) for _, file in rows)
    if len(rows) == 1:
        data = rows[0][1]  # as it came: no copy
    else:
        data = b"".join(piece for _, file in rows for piece in (file, bytes(longest - len(file))))
    lengths = np.array([[len(file)] for _, file in rows], dtype=np.int32)
    return ImageBatch(tuple(index for index, _ in rows), data, lengths, longest)
