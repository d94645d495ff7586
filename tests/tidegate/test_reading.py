"""Files and what may be wrong with them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tidegate.errors import InputsError, Problem
from tidegate.reading import Stamp, read_some, stamp_of


def test_files_are_read_until_a_request_is_full(tmp_path: Path) -> None:
    """As many as fit, in order, and one at least; the others are left for the next request, unread."""
    paths = []
    for number, size in enumerate([40, 50, 20, 500]):
        (tmp_path / str(number)).write_bytes(b"x" * size)
        paths.append(str(tmp_path / str(number)))
    loaded, rest = read_some(paths, 100, 1000)
    assert [len(each.content) for each in loaded] == [40, 50]
    assert rest == paths[2:]
    loaded, rest = read_some(paths[3:], 100, 1000)
    assert [len(each.content) for each in loaded] == [500]
    assert rest == []


def test_a_stamp_tells_of_a_change(tmp_path: Path) -> None:
    """Size and time of change, those of the bytes that were read."""
    file = tmp_path / "a"
    file.write_bytes(b"one")
    ((loaded,), _) = read_some([str(file)], 100, 100)
    assert loaded.stamp == stamp_of(str(file))
    os.utime(file, ns=(1, 12345))
    assert stamp_of(str(file)) == Stamp(3, 12345) != loaded.stamp
    assert stamp_of(str(tmp_path / "gone")) is None


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    """Each for itself: missing, a link to nowhere, a loop of links, a name that is too long, a folder, a pipe that
    nobody writes to, a name with a NUL, and a file that is larger than what is sent; an empty one is the gateway's."""
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 101)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    names = ["missing", "broken", "loop", "n" * 300, "folder", "pipe", "a\0b", "large", "empty"]
    loaded, rest = read_some([str(tmp_path / name) for name in names], 1000, 100)
    assert rest == []
    problems = [(each.problem.code, each.problem.message) if each.problem else None for each in loaded]
    assert problems == [
        ("file_not_found", "There is no such file."),
        ("file_not_found", "The link leads nowhere."),
        ("unreadable_file", "Too many levels of symbolic links."),
        ("unreadable_file", "File name too long."),
        ("not_a_file", "It is a folder: name folders as arguments; a list names files."),
        ("not_a_file", "It is neither a file nor a folder."),
        ("unreadable_file", "Embedded null byte."),
        ("file_too_large", "The file has 101 bytes; files of more than 100 are not sent."),
        None,
    ]


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="a system without /proc")
def test_files_that_do_not_tell_their_size() -> None:
    """Those of /proc have 0 bytes, and content: it is read, within the same bounds as any other file's."""
    content = Path("/proc/version").read_bytes()
    assert len(content) > os.stat("/proc/version").st_size == 0
    size = len(content)
    loaded, rest = read_some(["/proc/version"] * 3, 2 * size, size)
    assert [each.content for each in loaded] == [content] * 2
    assert rest == ["/proc/version"]
    loaded, rest = read_some(["/proc/version"] * 2, size - 1, size)
    assert ([each.content for each in loaded], rest) == ([content], ["/proc/version"])
    loaded, rest = read_some(["/proc/version"], 2 * size, 10)
    sentence = "The file has more than 10 bytes; files of more than 10 are not sent."
    assert [each.problem for each in loaded] == [Problem("file_too_large", sentence)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_not_for_us(tmp_path: Path) -> None:
    """Permission denied is that file's own error."""
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0)
    ((loaded,), _) = read_some([str(tmp_path / "secret")], 100, 100)
    assert loaded.problem is not None
    assert loaded.problem.message == "Permission denied."


def test_too_many_open_files_are_no_fault_of_a_file(tmp_path: Path) -> None:
    """A row must not say what is wrong with this process: the run ends instead."""
    (tmp_path / "a").write_bytes(b"x")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(tmp_path / "a", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(InputsError, match="Too many open files"):
            read_some([str(tmp_path / "a")], 100, 100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
