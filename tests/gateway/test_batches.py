"""Padding and splitting."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.batches import FREE_PADDING_BYTES, MAX_PADDING_SHARE, make_image_batches, make_text_batches


def files(*sizes: int) -> list[tuple[int, bytes]]:
    return [(i, bytes([1 + i % 255]) * size) for i, size in enumerate(sizes)]


def test_one_file_is_sent_as_it_came() -> None:
    """A single file is not copied and has no padding."""
    file = b"abc"
    (batch,) = make_image_batches([(7, file)], 8)
    assert batch.data is file
    assert (batch.indices, batch.row_bytes, batch.padding_bytes) == ((7,), 3, 0)


def test_rows_are_padded_with_zeros_to_the_longest() -> None:
    """Each row is its file, then zeros; the lengths are the true ones."""
    (batch,) = make_image_batches(files(2, 5, 3), 8)
    rows = np.frombuffer(batch.data, dtype=np.uint8).reshape(3, 5)
    for row, length, index in zip(rows, batch.lengths[:, 0], batch.indices, strict=True):
        assert bytes(row) == files(2, 5, 3)[index][1] + bytes(5 - length)
    assert batch.lengths.dtype == np.int32
    assert batch.padding_bytes == 3 + 2


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_no_batch_is_larger_than_the_limit(count: int) -> None:
    """N files make ceil(N / limit) batches when their sizes are alike, and each file is in one of them."""
    batches = make_image_batches(files(*[100] * count), 8)
    assert len(batches) == -(-count // 8)
    assert sorted(i for b in batches for i in b.indices) == list(range(count))


def test_files_of_unlike_sizes_do_not_travel_together() -> None:
    """Mixed sizes are split so that padding stays under its share."""
    sizes = [int(np.exp(s)) for s in np.random.default_rng(0).uniform(np.log(5_000), np.log(5_000_000), 64)]
    batches = make_image_batches(files(*sizes), 64)
    assert sorted(i for b in batches for i in b.indices) == list(range(64))
    for batch in batches:
        payload = int(batch.lengths.sum())
        assert batch.padding_bytes <= FREE_PADDING_BYTES + MAX_PADDING_SHARE * payload
    assert sum(b.padding_bytes for b in batches) <= 0.15 * sum(sizes)


def test_nothing_makes_no_batch() -> None:
    """No file, no batch."""
    assert make_image_batches([], 8) == []


@pytest.mark.parametrize("count", [0, 1, 8, 9, 17])
def test_texts_are_packed_behind_their_lengths(count: int) -> None:
    """In order, at most the limit in one batch, each as Triton reads strings; nothing is padding."""
    texts = [(i, b"x" * i) for i in range(count)]
    batches = make_text_batches(texts, 8)
    assert len(batches) == -(-count // 8)
    assert [i for batch in batches for i in batch.indices] == list(range(count))
    packed = b"".join(tensor.data for batch in batches for tensor in batch.tensors())
    assert packed == b"".join(len(text).to_bytes(4, "little") + text for _, text in texts)
    for batch in batches:
        (tensor,) = batch.tensors()
        assert (tensor.name, tensor.datatype, tensor.shape) == ("TEXT", "BYTES", (len(batch.indices), 1))
        assert (batch.payload_bytes, batch.padding_bytes) == (sum(map(len, batch.texts)), 0)
