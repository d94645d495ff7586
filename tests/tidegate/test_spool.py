"""What is known so far, and what is left of it after an end at the worst moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.client import Model
from tidegate.errors import DifferentModel, Problem, SpoolError, SpoolInUse
from tidegate.reading import Stamp
from tidegate.spool import Row, Spool, discard

MODEL = Model("embedder", "1", 2)


def row(name: str, size: int = 1) -> Row:
    return Row(name, Stamp(size, 7), f"answer for {name}".encode())


def test_rows_are_in_the_order_of_inputs(tmp_path: Path) -> None:
    """However they came; a path that is given twice has two rows; a path of an earlier run only has none."""
    spool = Spool(tmp_path / "spool")
    for path in ("b", "a", "c", "a"):
        spool.want(path)
    bad = Row("c", None, problem=Problem("file_not_found", "There is no such file.", passing=True))
    spool.add([row("a"), bad, row("old")], MODEL)
    spool.add([row("b")], MODEL)
    assert list(spool.rows()) == [row("b"), row("a"), bad, row("a")]
    assert [each.kept for each in spool.rows(kept=False)] == [None] * 4
    assert spool.inputs() == 4
    assert spool.problems() == [("file_not_found", 1, "c")]
    assert spool.passing() == 1
    spool.close()


def test_a_later_run_knows_what_was_committed(tmp_path: Path) -> None:
    """The stamp of each file with a result that stays; errors that may pass are as if nothing was known."""
    spool = Spool(tmp_path / "spool")
    spool.set_plan({"task": "embed"})
    stays = Row("bad", Stamp(3, 9), problem=Problem("corrupt_image", "It is cut."))
    passes = Row("late", Stamp(3, 9), problem=Problem("overloaded", "Busy.", passing=True))
    spool.add([row("a"), stays, passes], MODEL)
    spool.commit()
    spool.close()
    again = Spool(tmp_path / "spool")
    assert (again.plan, again.model) == ({"task": "embed"}, MODEL)
    assert [again.want(path) for path in ("a", "bad", "late", "new")] == [Stamp(1, 7), Stamp(3, 9), None, None]
    again.add([row("late"), row("new")], MODEL)
    assert list(again.rows()) == [row("a"), stays, row("late"), row("new")]
    again.close()


def test_what_was_not_committed_is_cut_off(tmp_path: Path) -> None:
    """Killed between two commits: the answers that the index does not know of are gone, and do not shift others."""
    clock = iter(range(1000))
    spool = Spool(tmp_path / "spool", clock=lambda: next(clock) / 1000)
    spool.add([row("a")], MODEL)
    spool.commit()
    spool.add([row("lost")], MODEL)
    spool.close()  # without a commit, as the end of the process would do
    with open(tmp_path / "spool" / "answers", "ab") as answers:
        answers.write(b"half an ans")
    again = Spool(tmp_path / "spool")
    assert [again.want(path) for path in ("a", "lost", "b")] == [Stamp(1, 7), None, None]
    again.add([row("lost"), row("b")], MODEL)
    assert list(again.rows()) == [row("a"), row("lost"), row("b")]
    again.close()


def test_it_commits_by_itself(tmp_path: Path) -> None:
    """At most a second of work is ever lost."""
    now = 0.0
    spool = Spool(tmp_path / "spool", clock=lambda: now)
    spool.add([row("a")], MODEL)
    now = 1.1
    spool.add([row("b")], MODEL)
    spool.add([row("c")], MODEL)
    spool.close()
    again = Spool(tmp_path / "spool")
    assert [again.want(path) is not None for path in "abc"] == [True, True, False]
    again.close()


def test_killed_before_anything(tmp_path: Path) -> None:
    """An empty folder, or an empty index, is a new spool."""
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "index.sqlite").touch()
    spool = Spool(folder)
    assert (dict(spool.plan), spool.model, list(spool.rows())) == ({}, None, [])
    spool.close()
    Spool(folder).close()


def test_a_changed_file_has_one_result(tmp_path: Path) -> None:
    """The later one."""
    spool = Spool(tmp_path / "spool")
    spool.want("a")
    spool.add([row("a")], MODEL)
    spool.add([Row("a", Stamp(2, 8), b"of the new one")], MODEL)
    assert list(spool.rows()) == [Row("a", Stamp(2, 8), b"of the new one")]
    spool.close()


@pytest.mark.parametrize("other", [Model("other", "1", 2), Model("embedder", "2", 2), Model("embedder", "1", 3)])
def test_two_models_do_not_mix(tmp_path: Path, other: Model) -> None:
    """Neither in one run nor over two; the rows of the other one are not taken."""
    spool = Spool(tmp_path / "spool")
    spool.add([row("a")], MODEL)
    with pytest.raises(DifferentModel, match=f"{other.name} version {other.version} .* answered, and before"):
        spool.add([row("b")], other)
    spool.commit()
    spool.close()
    again = Spool(tmp_path / "spool")
    assert again.want("b") is None
    with pytest.raises(DifferentModel):
        again.add([row("b")], other)
    again.close()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A second one is told, and takes nothing away; after the end of the first it may."""
    spool = Spool(tmp_path / "spool")
    spool.add([row("a")], MODEL)
    for use in (Spool, discard):
        with pytest.raises(SpoolInUse, match="in use by another run"):
            use(tmp_path / "spool")
    spool.commit()
    spool.close()
    again = Spool(tmp_path / "spool")
    assert again.want("a") == Stamp(1, 7)
    again.close()


def test_a_damaged_spool_is_told(tmp_path: Path) -> None:
    """Missing answers, an index that is none, and another format, in a sentence; it can still be thrown away."""
    folder = tmp_path / "spool"
    spool = Spool(folder)
    spool.add([row("a")], MODEL)
    spool.commit()
    spool.close()
    os.truncate(folder / "answers", 3)
    with pytest.raises(SpoolError, match="is damaged: answers are missing"):
        Spool(folder)
    (folder / "index.sqlite").write_bytes(b"no database at all" * 1000)
    with pytest.raises(SpoolError, match=r"is damaged \(file is not a database\)"):
        Spool(folder)
    discard(folder)
    assert not folder.exists()
    discard(folder)
    spool = Spool(folder)
    spool._set("format", "99")
    spool.commit()
    spool.close()
    with pytest.raises(SpoolError, match="another version of tidegate"):
        Spool(folder)


def test_a_spool_without_room(tmp_path: Path) -> None:
    """What the disk says, as a sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="cannot be used: Not a directory"):
        Spool(tmp_path / "file" / "spool")


def test_a_spool_is_removed_as_a_whole(tmp_path: Path) -> None:
    """Killed while it was deleted, it is not there; what is left of it goes with the next one that is deleted."""
    left = tmp_path / "spool.old"
    left.mkdir()
    (left / "answers").touch()
    Spool(tmp_path / "spool").remove()
    assert os.listdir(tmp_path) == []


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """File names are bytes, and come back as they were."""
    name = os.fsdecode(b"caf\xe9\n.jpg")
    spool = Spool(tmp_path / "spool")
    spool.want(name)
    spool.add([row("x"), Row(name, None, b"1")], MODEL)
    assert [each.path for each in spool.rows()] == [name]
    spool.close()
