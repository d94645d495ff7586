"""What is known so far, on disk beside the output: an end at any moment costs a second's work.

A folder with an index in SQLite and a file to which answers are appended. The index counts: answers that it does not
know of, because the process was killed before it was told, are cut off when it is opened again.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tidegate.client import Model
from tidegate.errors import DifferentModel, NoRoom, Problem, SpoolError, SpoolInUse
from tidegate.reading import Stamp

COMMIT_S = 1.0
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE inputs (place INTEGER PRIMARY KEY, path BLOB NOT NULL);
CREATE TABLE results (
    path BLOB PRIMARY KEY, size INTEGER, changed_ns INTEGER,
    code TEXT, message TEXT, passing INTEGER NOT NULL, start INTEGER, length INTEGER
) WITHOUT ROWID;
"""
_FORMAT = "1"
_NO_ROOM = {
    errno.ENOSPC: "its disk is full, so make room for it",
    errno.EDQUOT: "the quota of its disk is used up, so make room for it",
    errno.EFBIG: "it would be larger than is allowed, so raise `ulimit -f`",
}


@dataclass(frozen=True)
class Row:
    """What became of one path: what is `kept` of its answer, or its `problem`."""

    path: str
    stamp: Stamp | None
    kept: bytes | None = None
    problem: Problem | None = None


class Spool:
    """The results so far, by path, and the inputs of this run, in order. For one process, and one thread at a time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Opens the spool in `folder`, or makes it. Raises `SpoolError`."""
        self.folder = folder
        self._clock = clock
        self._failed: SpoolError | None = None
        with _mishaps(folder):
            folder.mkdir(exist_ok=True)
            self._index = sqlite3.connect(folder / "index.sqlite", timeout=0, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._index.close()
                raise

    def _prepare(self) -> None:
        self._index.isolation_level = None  # transactions begin and end where it says so here
        self._index.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._index.execute("BEGIN IMMEDIATE")
        if not self._index.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _SCHEMA.split(";"):
                self._index.execute(statement)
            self._set("format", _FORMAT)
            self._set("end", "0")
        if self._fact("format") != _FORMAT:
            raise SpoolError(
                f"{self.folder} is of another version of tidegate: delete it, or finish with that version."
            )
        self._index.execute("DELETE FROM inputs")
        self._places = 0
        self._end = int(self._fact("end") or 0)
        self._answers = open(self.folder / "answers", "ab", buffering=1024 * 1024)  # noqa: SIM115  # closed by close()
        if os.fstat(self._answers.fileno()).st_size < self._end:
            self._answers.close()
            raise SpoolError(f"{self.folder} is damaged: answers are missing. Delete it, and begin anew.")
        try:
            self._answers.truncate(self._end)
            self._commit()
        except BaseException:
            self._answers.close()
            raise

    @property
    def plan(self) -> Mapping[str, str]:
        """What the run that made it was asked for; empty if it is new."""
        with _mishaps(self.folder):
            plan: dict[str, str] = json.loads(self._fact("plan") or "{}")
        return plan

    def set_plan(self, plan: Mapping[str, str]) -> None:
        """To be compared by a later run."""
        with _mishaps(self.folder):
            self._set("plan", json.dumps(plan))

    @property
    def model(self) -> Model | None:
        """Who gave all the answers so far."""
        with _mishaps(self.folder):
            known = self._fact("model")
        return Model(*json.loads(known)) if known else None

    def want(self, path: str) -> Stamp | None:
        """Notes the next input; the stamp of its file if it has a result that another try would not change."""
        raw = os.fsencode(path)
        with self._writing():
            self._places += 1
            self._index.execute("INSERT INTO inputs VALUES (?, ?)", (self._places, raw))
            known = self._index.execute(
                "SELECT size, changed_ns FROM results WHERE path = ? AND NOT passing", (raw,)
            ).fetchone()
        return Stamp(*known) if known and known[0] is not None else None

    def add(self, rows: Iterable[Row], model: Model | None = None) -> None:
        """Results, in place of earlier ones of the same paths; `model` gave them. On disk within about a second.

        Raises `DifferentModel` when another one gave the results so far.
        """
        with self._writing():
            if model is not None:
                self._check_same(model)
            for row in rows:
                self._add(row)
            if self._clock() - self._committed_at >= COMMIT_S:
                self._commit()

    def _check_same(self, model: Model) -> None:
        known = self.model
        if known is None:
            self._set("model", json.dumps([model.name, model.version, model.dim]))
        else:
            check_same(known, model)

    def _add(self, row: Row) -> None:
        size, changed = (row.stamp.size, row.stamp.changed_ns) if row.stamp else (None, None)
        code, message, passing, start, length = None, None, False, None, None
        if row.problem is not None:
            code, message, passing = row.problem.code, row.problem.message, row.problem.passing
        if row.kept is not None:
            self._answers.write(row.kept)
            start, length = self._end, len(row.kept)
            self._end += length
        self._index.execute(
            "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (os.fsencode(row.path), size, changed, code, message, passing, start, length),
        )

    def commit(self) -> None:
        """All results so far outlive the process, and the machine."""
        with self._writing():
            self._commit()

    def _commit(self) -> None:
        self._answers.flush()
        os.fsync(self._answers.fileno())  # before the index knows of them
        self._set("end", str(self._end))
        self._index.execute("COMMIT")
        self._index.execute("BEGIN IMMEDIATE")
        self._committed_at = self._clock()

    def rows(self, *, kept: bool = True) -> Iterator[Row]:
        """One for each input of this run, in order; without `kept` faster, and without what is kept of the answers."""
        with self._writing():
            self._commit()
        with _mishaps(self.folder), open(self.folder / "answers", "rb") as answers:
            for path, size, changed, code, message, passing, start, length in self._index.execute(
                "SELECT inputs.path, size, changed_ns, code, message, passing, start, length "
                "FROM inputs LEFT JOIN results USING (path) ORDER BY place"
            ):
                if passing is None:
                    raise SpoolError(f"{self.folder} has no result for {os.fsdecode(path)!r}: run it again.")
                stamp = Stamp(size, changed) if size is not None else None
                if code is not None:
                    yield Row(os.fsdecode(path), stamp, problem=Problem(code, message, bool(passing)))
                    continue
                if not kept:
                    yield Row(os.fsdecode(path), stamp)
                    continue
                answers.seek(start)
                answer = answers.read(length)
                if len(answer) != length:
                    raise SpoolError(f"{self.folder} is damaged: answers are missing. Delete it, and begin anew.")
                yield Row(os.fsdecode(path), stamp, answer)

    def inputs(self) -> int:
        """How many inputs this run has."""
        return self._places

    def problems(self) -> Sequence[tuple[str, int, str]]:
        """Of this run: each code, how many inputs have it, and the first of their paths; the most frequent first."""
        with _mishaps(self.folder):
            found = self._index.execute(
                "SELECT code, count(*) AS inputs_with_it, inputs.path, min(place) FROM inputs "
                "JOIN results USING (path) WHERE code IS NOT NULL GROUP BY code ORDER BY inputs_with_it DESC, code"
            ).fetchall()
        return [(code, count, os.fsdecode(path)) for code, count, path, _ in found]

    def passing(self) -> int:
        """How many inputs of this run may fare better at another time."""
        with _mishaps(self.folder):
            (count,) = self._index.execute(
                "SELECT count(*) FROM inputs JOIN results USING (path) WHERE passing"
            ).fetchone()
        return int(count)

    def close(self) -> None:
        """Keeps what was committed."""
        with suppress(OSError):  # closing writes what is buffered, which a full disk refuses, and nobody counts on
            self._answers.close()
        self._index.close()

    def remove(self) -> None:
        """Closes it, and deletes it: a spool that is half deleted is never taken for one."""
        self.close()
        with _mishaps(self.folder):
            shutil.rmtree(removed_folder(self.folder), ignore_errors=True)
            os.replace(self.folder, removed_folder(self.folder))
            shutil.rmtree(removed_folder(self.folder))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """After one failure nobody knows what is in the buffer and in the transaction: nothing more is written."""
        if self._failed is not None:
            raise self._failed
        try:
            with _mishaps(self.folder):
                yield
        except SpoolError as error:
            self._failed = error
            with suppress(sqlite3.Error):  # it may be rolled back already
                self._index.execute("ROLLBACK")
            raise

    def _fact(self, name: str) -> str | None:
        found = self._index.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def _set(self, name: str, value: str) -> None:
        self._index.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def removed_folder(folder: Path) -> Path:
    """Where a spool is while it is deleted."""
    return folder.with_name(folder.name + ".old")


def discard(folder: Path) -> None:
    """Deletes the spool in `folder`, damaged or not, if there is one. Raises `SpoolInUse`."""
    if folder.exists():
        try:
            Spool(folder).remove()
        except SpoolInUse:
            raise
        except SpoolError:
            with _mishaps(folder):
                shutil.rmtree(folder)


def check_same(known: Model, model: Model) -> None:
    """Raises `DifferentModel` unless both are the same."""
    if known != model:
        asked = f"--model-version {shlex.quote(known.version)}"
        if known.name != model.name:
            asked = f"--model {shlex.quote(known.name)} {asked}"
        raise DifferentModel(
            f"{_named(model)} answered, and before it {_named(known)}: what two models give does not mix. --resume "
            f"with {asked} pins the one from before, and goes on with it; --overwrite begins anew."
        )


def _named(model: Model) -> str:
    return f"{model.name} version {model.version} ({model.dim} values)"


def mishap(where: Path, error: OSError, deed: str = "used") -> SpoolError:
    """What a disk says, as a sentence of ours."""
    if error.errno in _NO_ROOM:
        return NoRoom(f"{where} cannot be written: {_NO_ROOM[error.errno]}.")
    return SpoolError(f"{where} cannot be {deed}: {error.strerror or error}.")


@contextmanager
def _mishaps(folder: Path) -> Iterator[None]:
    """What disks and SQLite say, as a sentence of ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise SpoolInUse(f"{folder} is in use by another run: wait for its end.") from error
        if "disk is full" in str(error):
            raise mishap(folder, OSError(errno.ENOSPC, str(error))) from error
        raise SpoolError(f"{folder} cannot be used: {error}.") from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:  # a mistake of ours
            raise
        raise SpoolError(f"{folder} is damaged ({error}): delete it, and begin anew.") from error
    except OSError as error:
        raise mishap(folder, error) from error
