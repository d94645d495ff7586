"""Encoded images → padded byte arrays with true lengths, in batches whose padding stays small.

Triton wants one rectangle a request: `RAW_IMAGE` UINT8 `[N, L]`, every file padded with zeros to the longest.
Files of one size class travel together, so that one large photo does not blow up its small neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A batch is cut where its padding would pass this share of its payload (plus a little, so that the first
# few small files are not sent one by one): copying a padded byte costs as much as copying a real one.
MAX_PADDING_SHARE = 0.10
FREE_PADDING_BYTES = 64 * 1024


@dataclass(frozen=True)
class Batch:
    """One Triton request: `indices` says which images of the caller's list its rows are."""

    indices: tuple[int, ...]
    data: bytes  # N × L, row after row
    lengths: NDArray[np.int32]  # INT32 [N, 1]
    row_bytes: int  # L

    @property
    def padding_bytes(self) -> int:
        return len(self.data) - int(self.lengths.sum())


def make_batches(files: Sequence[tuple[int, bytes]], max_batch: int) -> list[Batch]:
    """Batches of at most `max_batch` rows that hold every `(index, file)` once, files of like size together."""
    batches: list[Batch] = []
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


def _pad(rows: list[tuple[int, bytes]]) -> Batch:
    longest = max(len(file) for _, file in rows)
    if len(rows) == 1:
        data = rows[0][1]  # as it came: no copy
    else:
        data = b"".join(piece for _, file in rows for piece in (file, bytes(longest - len(file))))
    lengths = np.array([[len(file)] for _, file in rows], dtype=np.int32)
    return Batch(tuple(index for index, _ in rows), data, lengths, longest)
