"""Files → bytes: as many as fit into one request, and each with what it was like when it was read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.errors import InputsError, Problem

MIB = 1024 * 1024
_PIECE = 256 * 1024
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What is wrong with this process, and not with a file: no row may say so."""


@dataclass(frozen=True)
class Stamp:
    """By what a changed file is known: its size in bytes, and when it was changed, in nanoseconds."""

    size: int
    changed_ns: int


@dataclass(frozen=True)
class Loaded:
    """A file's bytes and its stamp, or why there are none."""

    path: str
    content: bytes = b""
    stamp: Stamp | None = None
    problem: Problem | None = None


def stamp_of(path: str) -> Stamp | None:
    """The stamp of the file at `path` as it is now; None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return Stamp(found.st_size, found.st_mtime_ns)


def read_some(paths: Sequence[str], most_bytes: int, most_bytes_each: int) -> tuple[list[Loaded], list[str]]:
    """Files from the front of `paths` until they hold `most_bytes` together, one at least, and the paths that are left.

    A file of more than `most_bytes_each` is not read. Raises `InputsError` for what is no file's fault, such as too
    many open files.
    """
    loaded: list[Loaded] = []
    room = most_bytes
    for number, path in enumerate(paths):
        one = _read(path, room if number else None, most_bytes_each)
        if one is None:
            return loaded, list(paths[number:])
        loaded.append(one)
        room -= len(one.content)
    return loaded, []


def _read(path: str, room: int | None, most: int) -> Loaded | None:
    """One file; None if it does not fit into `room`."""
    try:
        # Nobody may ever write into a pipe that is opened here.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return Loaded(path, problem=_no_file(found.st_mode))
            if found.st_size > most:
                return Loaded(path, problem=_too_large(str(found.st_size), most))
            if room is not None and found.st_size > room:
                return None
            content = _content(descriptor, found.st_size) if found.st_size else _untold(descriptor, room, most)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _OURS:
            sentence = f"Files cannot be opened: {error.strerror}. Ask for less with --concurrency, or see `ulimit -n`."
            raise InputsError(sentence) from error
        return Loaded(path, problem=_unreadable(path, error))
    if content is None:
        return None
    if len(content) > most:
        return Loaded(path, problem=_too_large(f"more than {most}", most))
    return Loaded(path, content, Stamp(found.st_size, found.st_mtime_ns))


def _content(descriptor: int, size: int) -> bytes:
    """Not more than `size` bytes, although the file may grow meanwhile."""
    pieces = []
    while size and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _untold(descriptor: int, room: int | None, most: int) -> bytes | None:
    """The content of a file whose size is said to be 0, as it is for all of /proc; a byte more than `most` if it has
    more than that, and None if it does not fit into `room`."""
    limit = most if room is None else min(most, room)
    content = bytearray()
    while len(content) <= limit and (piece := os.read(descriptor, min(_PIECE, limit + 1 - len(content)))):
        content += piece
    return None if limit < len(content) <= most else bytes(content)


def _too_large(size: str, most: int) -> Problem:
    return Problem("file_too_large", f"The file has {size} bytes; files of more than {most} are not sent.")


def _no_file(mode: int) -> Problem:
    if stat.S_ISDIR(mode):
        return Problem("not_a_file", "It is a folder: name folders as arguments; a list names files.")
    return Problem("not_a_file", "It is neither a file nor a folder.")


def _unreadable(path: str, error: OSError | ValueError) -> Problem:
    if isinstance(error, FileNotFoundError):
        there = os.path.islink(path)
        return Problem("file_not_found", "The link leads nowhere." if there else "There is no such file.", passing=True)
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Problem("unreadable_file", f"{words[:1].upper()}{words[1:]}.", passing=True)
