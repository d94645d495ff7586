"""What is taken of paths, folders, patterns and lists."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT
from tidegate.errors import InputsError
from tidegate.inputs import Input, Skipped, Sources, _listing


def make(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())


def walk(*paths: Path | str, lists: tuple[Path, ...] = (), skipped: Skipped | None = None) -> list[str]:
    sources = Sources(tuple(map(str, paths)), tuple(map(str, lists)))
    return [each.path for each in sources.walk(skipped or Skipped())]


def test_a_folder_is_walked_by_name_with_folders_in_their_place(tmp_path: Path) -> None:
    """Every regular file is taken, whatever it is called; the order is that of names, and as given between paths."""
    make(tmp_path, "b/2.JPG", "b/1.txt", "a", "c", "b/deep/er/x", "Z")
    below = [os.path.relpath(path, tmp_path) for path in walk(tmp_path)]
    assert below == ["Z", "a", "b/1.txt", "b/2.JPG", "b/deep/er/x", "c"]
    assert walk(tmp_path / "c", tmp_path / "a", tmp_path / "c") == [str(tmp_path / name) for name in "cac"]


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    """Hidden files and folders, links to folders and special files are left out of a walk, and told; a loop of links
    ends; a link that leads nowhere is an input, because somebody may miss it."""
    make(tmp_path, ".hidden", ".git/config", ".git/more", "a/b.jpg")
    (tmp_path / "a" / "round").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "good").symlink_to("a/b.jpg")
    os.mkfifo(tmp_path / "pipe")
    skipped = Skipped()
    assert [os.path.relpath(path, tmp_path) for path in walk(tmp_path, skipped=skipped)] == [
        "a/b.jpg",
        "broken",
        "good",
    ]
    assert (skipped.hidden, skipped.links, skipped.special) == (2, 1, 1)
    assert str(skipped) == "2 hidden, 1 link to a folder, 1 neither file nor folder"


def test_what_is_named_is_taken(tmp_path: Path) -> None:
    """Hidden files, folders behind links, and files that do not exist, if they are named."""
    make(tmp_path, ".hidden", "real/x")
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    named = [tmp_path / ".hidden", tmp_path / "link", tmp_path / "missing"]
    assert walk(*named) == [str(named[0]), str(named[1] / "x"), str(named[2])]


PATTERNS = ["*", "*.jpg", "?/*", "**/*.jpg", "**/b/**/*", "a/**/*.jpg", "**/**/2.jpg", ".*", "**/.h/*", "[ab]/*.jp?"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_finds_what_a_shell_finds(tmp_path: Path, pattern: str) -> None:
    """The files that Python's own glob finds, each once, in order; folders that fit are walked."""
    make(
        tmp_path, "1.jpg", "2.txt", "a/1.jpg", "a/b/2.jpg", "a/b/b/3.jpg", "b/x.JPG", "b/b/2.jpg", ".h/1.jpg", "a/.h/y"
    )
    found = walk(f"{tmp_path}/{pattern}")
    expected: set[str] = set()
    for path in glob.glob(f"{tmp_path}/{pattern}", recursive=True):
        expected |= set(walk(path)) if os.path.isdir(path) else {path}
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert found == sorted(found, key=lambda path: path.split("/"))


def test_a_pattern_without_a_match_is_an_input_with_a_problem(tmp_path: Path) -> None:
    """A misspelt pattern is not passed over."""
    make(tmp_path, "a.jpg")
    for pattern in (f"{tmp_path}/*.png", f"{tmp_path}/nowhere/*", f"{tmp_path}/a.jpg/*"):
        (only,) = Sources((pattern,)).walk(Skipped())
        assert only.problem is not None
        assert (only.path, only.problem.code) == (pattern, "file_not_found")


def test_a_file_may_be_called_like_a_pattern(tmp_path: Path) -> None:
    """What exists under the very name is meant."""
    make(tmp_path, "photo[1].jpg", "photo1.jpg")
    assert walk(tmp_path / "photo[1].jpg") == [str(tmp_path / "photo[1].jpg")]


def test_a_pattern_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are as they were given: relative ones stay relative."""
    make(tmp_path, "a/1.jpg", "a/2.png")
    monkeypatch.chdir(tmp_path)
    assert walk("*/*.jpg") == ["a/1.jpg"]
    assert walk("a") == ["a/1.jpg", "a/2.png"]
    assert walk(".") == ["./a/1.jpg", "./a/2.png"]


def test_a_list_names_files(tmp_path: Path) -> None:
    """One a line, in its order, twice if it says so; line ends of Windows, its mark at the beginning, empty lines and
    a missing last line end make no difference, and names need not be UTF-8."""
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xef\xbb\xbfb.jpg\r\n\na.jpg\nb.jpg\n*.jpg\ncaf\xe9.jpg")
    assert walk(lists=(file,)) == ["b.jpg", "a.jpg", "b.jpg", "*.jpg", os.fsdecode(b"caf\xe9.jpg")]


def test_a_list_on_standard_input() -> None:
    """`-` among the paths, wherever it stands."""
    program = (
        "from tidegate.inputs import *\n"
        "print([each.path for each in Sources(('first', '-', 'last')).walk(Skipped())], Sources(('-',)).repeatable)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=b"a\nb\n", capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.decode() == "['first', 'a', 'b', 'last'] False\n"


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    """One that is missing is refused before anything is done; one without line ends is no list."""
    with pytest.raises(InputsError, match=r"gone\.txt cannot be read: No such file"):
        Sources((), (str(tmp_path / "gone.txt"),)).check()
    file = tmp_path / "film.mp4"
    file.write_bytes(b"a\n" + b"x" * 100_000)
    with pytest.raises(InputsError, match="Line 2 of the list"):
        walk(lists=(file,))


def test_the_walk_is_lazy(tmp_path: Path) -> None:
    """A folder is looked into when its turn comes, so millions of files are never in memory together."""
    make(tmp_path, "a/1", "b/1")
    found = Sources((str(tmp_path),)).walk(Skipped())
    assert next(found).path.endswith("a/1")
    make(tmp_path, "b/2")
    assert [os.path.relpath(each.path, tmp_path) for each in found] == ["b/1", "b/2"]


@pytest.mark.parametrize("spill", [1, 3, 7, 100])
def test_a_large_folder_is_sorted_on_disk(tmp_path: Path, spill: int) -> None:
    """With the same result as in memory, also for names with line feeds and bytes that are no UTF-8."""
    names = [*(f"{i * 7919 % 23:03}" for i in range(20)), "with\nline", os.fsdecode(b"caf\xe9"), "ähnlich", "x" * 200]
    make(tmp_path, *(name for name in names if name.isascii()), "ähnlich")
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"")
    (tmp_path / "folder").mkdir()
    assert list(_listing(str(tmp_path), spill)) == sorted([*((name, b"f") for name in names), ("folder", b"d")])


def test_our_own_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output and what lies beside it are no inputs; another file of the same name is one."""
    make(tmp_path, "out.npz", "out.npz.spool/answers", "a/out.npz", "b")
    monkeypatch.chdir(tmp_path)
    own = frozenset(str((tmp_path / name).resolve()) for name in ("out.npz", "out.npz.spool"))
    for given in (".", "*"):
        found = [os.path.normpath(each.path) for each in Sources((given,), (), own).walk(Skipped())]
        assert found == ["a/out.npz", "b"]


def test_a_folder_that_goes_away_is_an_error_of_its_own(tmp_path: Path) -> None:
    """What cannot be looked into has a row, because nobody knows what is in it; the walk goes on."""
    make(tmp_path, "a/1", "b/1", "c/1")
    found = Sources((str(tmp_path),)).walk(Skipped())
    assert next(found).path.endswith("a/1")
    (tmp_path / "b" / "1").unlink()
    (tmp_path / "b").rmdir()
    rest = list(found)
    assert rest[0] == Input(str(tmp_path / "b"), rest[0].problem)
    assert rest[0].problem is not None
    assert rest[0].problem.code == "unreadable_folder"
    assert rest[1].path.endswith("c/1")
