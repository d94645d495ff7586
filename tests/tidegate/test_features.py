"""The files that users read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tidegate.features
from tidegate.client import Model
from tidegate.errors import Problem, SpoolError
from tidegate.features import partial_file, write_features
from tidegate.spool import Row, Spool

MODEL = Model("embedder", "15", 3)
VECTORS = np.arange(60, dtype=np.float32).reshape(20, 3) / 7


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Twenty rows, of which the fifth and the last two have no features."""
    spool = Spool(tmp_path / "spool")
    for number, vector in enumerate(VECTORS):
        path = f"photos/ünder {number}.jpg" if number else os.fsdecode(b"caf\xe9.jpg")
        spool.want(path)
        problem = Problem("corrupt_image", f"It is cut at {number}.") if number in (5, 18, 19) else None
        spool.add([Row(path, None, None if problem else vector.tobytes(), problem)], MODEL)
    yield spool
    spool.close()


@pytest.fixture(params=[1, 7, 100])
def rows_a_group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Files are written in pieces of so many rows."""
    monkeypatch.setattr(tidegate.features, "MOST_ROWS", request.param)
    return int(request.param)


PATHS = [r"caf\xe9.jpg", *(f"photos/ünder {number}.jpg" for number in range(1, 20))]
GOOD = [number not in (5, 18, 19) for number in range(20)]


@pytest.mark.usefixtures("rows_a_group")
def test_npz(spool: Spool, tmp_path: Path) -> None:
    """`numpy.load` reads it without pickle: paths, errors and messages as text, FP32 rows, NaN where there are none."""
    out = tmp_path / "features.npz"
    write_features(spool, MODEL, out)
    with np.load(out, allow_pickle=False) as file:
        assert file["paths"].tolist() == PATHS
        assert file["embeddings"].dtype == np.float32
        assert file["embeddings"].shape == (20, 3)
        assert_array_equal(file["embeddings"][GOOD], VECTORS[GOOD])
        assert np.isnan(file["embeddings"][~np.array(GOOD)]).all()
        assert file["errors"].tolist() == ["" if good else "corrupt_image" for good in GOOD]
        assert file["messages"].tolist() == ["" if good else f"It is cut at {i}." for i, good in enumerate(GOOD)]
        assert (str(file["model"]), str(file["version"]), int(file["dim"])) == ("embedder", "15", 3)
    assert not partial_file(out).exists()


def test_parquet(spool: Spool, tmp_path: Path, rows_a_group: int) -> None:
    """One row for each input, in row groups; null where there are no features; model, version and dim once."""
    pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
    out = tmp_path / "features.parquet"
    write_features(spool, MODEL, out)
    table = pq.read_table(out)
    assert table.column_names == ["path", "status", "error_code", "error_message", "embedding"]
    assert table["path"].to_pylist() == PATHS
    assert table["status"].to_pylist() == ["ok" if good else "error" for good in GOOD]
    assert table["error_code"].to_pylist() == [None if good else "corrupt_image" for good in GOOD]
    assert table["error_message"].to_pylist() == [None if good else f"It is cut at {i}." for i, good in enumerate(GOOD)]
    expected = [vector.tolist() if good else None for vector, good in zip(VECTORS, GOOD, strict=True)]
    assert table["embedding"].to_pylist() == expected
    flat = table["embedding"].combine_chunks().flatten().to_numpy()
    assert flat.dtype == np.float32
    assert_array_equal(flat.reshape(-1, 3), VECTORS[GOOD])
    metadata = pq.read_schema(out).metadata
    assert metadata[b"tidegate.model"] == b"embedder"
    assert metadata[b"tidegate.version"] == b"15"
    assert metadata[b"tidegate.dim"] == b"3"
    assert pq.ParquetFile(out).num_row_groups == -(-20 // rows_a_group)


@pytest.mark.parametrize("name", ["features.npz", "features.parquet"])
def test_a_file_without_any_features(tmp_path: Path, name: str) -> None:
    """All inputs failed: rows with their errors, `dim` 0."""
    pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError) if name.endswith("parquet") else None
    spool = Spool(tmp_path / "spool")
    spool.want("a")
    spool.add([Row("a", None, problem=Problem("file_not_found", "There is no such file.", passing=True))])
    write_features(spool, None, tmp_path / name)
    spool.close()
    if pq is not None:
        table = pq.read_table(tmp_path / name)
        assert table["embedding"].to_pylist() == [None]
        assert pq.read_schema(tmp_path / name).metadata[b"tidegate.dim"] == b"0"
        return
    with np.load(tmp_path / name) as file:
        assert file["embeddings"].shape == (1, 0)
        assert file["errors"].tolist() == ["file_not_found"]


@pytest.mark.parametrize("name", ["features.npz", "features.parquet"])
def test_whole_or_not_at_all(spool: Spool, tmp_path: Path, name: str) -> None:
    """When it goes wrong in the middle there is no half file, and an earlier one is as it was."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", exc_type=ImportError)
    out = tmp_path / name
    out.write_bytes(b"from before")
    spool.commit()
    os.truncate(tmp_path / "spool" / "answers", 100)
    with pytest.raises(SpoolError, match="damaged"):
        write_features(spool, MODEL, out)
    assert out.read_bytes() == b"from before"
    assert not partial_file(out).exists()


def test_a_place_that_cannot_be_written(spool: Spool, tmp_path: Path) -> None:
    """A sentence with the disk's own word."""
    with pytest.raises(SpoolError, match=r"out\.npz cannot be written: No such file or directory"):
        write_features(spool, MODEL, tmp_path / "gone" / "out.npz")
