"""The spool → one file of features, which is there as a whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tidegate.client import Model
from tidegate.spool import Row, Spool, mishap

SUFFIXES = (".npz", ".parquet")
GROUP_BYTES = 32 * 1024 * 1024
"""Of a row group's embeddings, and of what is in memory at one time."""
MOST_ROWS = 16 * 1024


def partial_file(out: Path) -> Path:
    """Where the file grows until it is whole."""
    return out.with_name(out.name + ".partial")


def write_features(spool: Spool, model: Model | None, out: Path) -> None:
    """Writes `out`, by its suffix, from a spool whose kept answers are FP32 `[dim]`, little-endian.

    Raises `SpoolError` when it cannot be written. Without a `model`, when no input had an answer, `dim` is 0.
    """
    partial = partial_file(out)
    table = _Table(spool, model or Model("", "", 0))
    try:
        with open(partial, "wb") as file:
            (_write_npz if out.suffix == ".npz" else _write_parquet)(table, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise mishap(out, error, "written") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class _Table:
    spool: Spool
    model: Model

    @property
    def dim(self) -> int:
        return self.model.dim or 0

    def groups(self, *, kept: bool = True) -> Iterator[list[Row]]:
        rows = self.spool.rows(kept=kept)
        size = max(1, min(MOST_ROWS, GROUP_BYTES // (4 * max(1, self.dim))))
        while group := list(islice(rows, size)):
            yield group


def _name(path: str) -> str:
    r"""A path as text; bytes that are no UTF-8 as `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _code(row: Row) -> str:
    return row.problem.code if row.problem else ""


def _message(row: Row) -> str:
    return row.problem.message if row.problem else ""


def _write_npz(table: _Table, file: IO[bytes]) -> None:
    """`paths`, `embeddings` FP32 `[n, dim]` with NaN where there is none, `errors` and `messages` (empty where all is
    well), `model`, `version`, `dim`: each array is written in pieces, as `numpy.save` would write it."""
    rows, longest = 0, {"paths": 1, "errors": 1, "messages": 1}
    texts = {"paths": lambda row: _name(row.path), "errors": _code, "messages": _message}
    for group in table.groups(kept=False):
        rows += len(group)
        for name, text in texts.items():
            longest[name] = max(longest[name], *(len(text(row)) for row in group))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, text in texts.items():
            kind = np.dtype(f"<U{longest[name]}")
            pieces = (np.array([text(row) for row in group], kind) for group in table.groups(kept=False))
            _write_array(archive, name, kind, (rows,), pieces)
        vectors = (_vectors(group, table.dim) for group in table.groups())
        _write_array(archive, "embeddings", np.dtype("<f4"), (rows, table.dim), vectors)
        for name, value in (("model", table.model.name), ("version", table.model.version), ("dim", table.dim)):
            array: NDArray[Any] = np.array(value)
            _write_array(archive, name, array.dtype, (), [array])


def _write_array(
    archive: zipfile.ZipFile, name: str, kind: np.dtype[Any], shape: tuple[int, ...], pieces: Iterable[NDArray[Any]]
) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        head = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, head)  # type: ignore[no-untyped-call]  # numpy has no types for it
        for piece in pieces:
            member.write(piece.tobytes())


def _vectors(group: Sequence[Row], dim: int) -> NDArray[np.float32]:
    vectors = np.full((len(group), dim), np.nan, dtype="<f4")
    for vector, row in zip(vectors, group, strict=True):
        if row.kept is not None:
            vector[:] = np.frombuffer(row.kept, dtype="<f4")
    return vectors


def _write_parquet(table: _Table, file: IO[bytes]) -> None:
    """`path`, `status`, `error_code`, `error_message`, `embedding` (a list of FP32, null where there is none); and
    `tidegate.model`, `tidegate.version`, `tidegate.dim` among the file's key-value metadata."""
    import pyarrow as pa  # only where it is asked for: the extra `parquet`
    import pyarrow.parquet as pq

    text = pa.string()
    schema = pa.schema(
        [
            pa.field("path", text, nullable=False),
            pa.field("status", text, nullable=False),
            pa.field("error_code", text),
            pa.field("error_message", text),
            # Not of a fixed size: Parquet has no such type, and Arrow cannot read back one with nulls.
            pa.field("embedding", pa.list_(pa.field("element", pa.float32(), nullable=False))),
        ],
        metadata={
            "tidegate.model": table.model.name,
            "tidegate.version": table.model.version,
            "tidegate.dim": str(table.dim),
        },
    )
    words = ["path", "status", "error_code", "error_message"]
    with pq.ParquetWriter(
        file,
        schema,
        compression={**dict.fromkeys(words, "zstd"), "embedding.list.element": "none"},
        use_dictionary=["status", "error_code", "error_message"],
        write_statistics=["path", "status", "error_code"],
    ) as writer:
        for group in table.groups():
            missing = np.array([row.kept is None for row in group])
            offsets = np.concatenate(([0], np.cumsum(~missing) * table.dim)).astype(np.int32)
            values = np.frombuffer(b"".join(row.kept for row in group if row.kept is not None), dtype="<f4")
            columns = [
                pa.array([_name(row.path) for row in group], text),
                pa.array(["error" if row.problem else "ok" for row in group], text),
                pa.array([row.problem.code if row.problem else None for row in group], text),
                pa.array([row.problem.message if row.problem else None for row in group], text),
                pa.ListArray.from_arrays(
                    pa.array(offsets), pa.array(values), type=schema.field("embedding").type, mask=pa.array(missing)
                ),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(group))
