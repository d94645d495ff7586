"""Paths, folders, patterns and lists → one input after the other, in order, and never all of them in memory."""

from __future__ import annotations

import glob
import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import IO

from tidegate.errors import InputsError, Problem

STANDARD_INPUT = "-"
SPILL = 250_000
"""Names of one folder that are sorted in memory, some 40 MB; a larger folder is sorted on disk."""
LONGEST_LINE = 64 * 1024
"""Bytes of a line in a list. Linux takes paths of up to 4,096."""

FILE, FOLDER, LINK, OTHER = b"f", b"d", b"l", b"o"


@dataclass(frozen=True)
class Input:
    """A path as it will stand in the output; with a `problem` if there is nothing to read at it."""

    path: str
    problem: Problem | None = None


@dataclass
class Skipped:
    """What a walk left out: hidden files and folders, links to folders, and what is neither file nor folder."""

    hidden: int = 0
    links: int = 0
    special: int = 0

    def __str__(self) -> str:
        """A few words for a person; empty if nothing was left out."""
        links = "link to a folder" if self.links == 1 else "links to folders"
        counts = [(self.hidden, "hidden"), (self.links, links), (self.special, "neither file nor folder")]
        return ", ".join(f"{count:,} {what}" for count, what in counts if count)


@dataclass(frozen=True)
class Sources:
    """What to take: `paths` (files, folders, patterns, or `-` for a list on standard input), then the files of `lists`.

    `leave_out` has real paths that a walk passes over, such as the file that is being written.
    """

    paths: tuple[str, ...]
    lists: tuple[str, ...] = ()
    leave_out: frozenset[str] = frozenset()

    @property
    def repeatable(self) -> bool:
        """Whether a second walk finds the same; standard input is gone after the first."""
        return STANDARD_INPUT not in (*self.paths, *self.lists)

    def check(self) -> None:
        """Raises `InputsError` for a list that cannot be read, before any work is done."""
        for name in self.lists:
            if name != STANDARD_INPUT:
                _open_list(name).close()

    def walk(self, skipped: Skipped) -> Iterator[Input]:
        """Every input, in order: as given, and within a folder by name, folders in their place.

        In a walk hidden files and folders, links to folders and special files are passed over, and counted in
        `skipped`. Raises `InputsError` when a list cannot be read.
        """
        for path in self.paths:
            yield from self._argument(path, skipped)
        for name in self.lists:
            yield from _listed(name)

    def _argument(self, path: str, skipped: Skipped) -> Iterator[Input]:
        if path == STANDARD_INPUT:
            yield from _listed(path)
        elif os.path.isdir(path):
            yield from self._walk(path, skipped)
        elif glob.has_magic(path) and not os.path.lexists(path):
            yield from self._pattern(path, skipped)
        else:
            yield Input(path)

    def _walk(self, folder: str, skipped: Skipped) -> Iterator[Input]:
        open_folders = [(folder, _listing(folder))]
        while open_folders:
            here, listing = open_folders[-1]
            try:
                name, kind = next(listing)
            except StopIteration:
                open_folders.pop()
                continue
            except OSError as error:
                open_folders.pop()
                yield _unreadable(here, error)
                continue
            path = os.path.join(here, name)
            if name.startswith("."):
                skipped.hidden += 1
            elif kind == OTHER:
                skipped.special += 1
            elif kind == LINK and os.path.isdir(path):
                skipped.links += 1
            elif self._is_ours(path, name):
                continue
            elif kind == FOLDER:
                open_folders.append((path, _listing(path)))
            else:
                yield Input(path)

    def _is_ours(self, path: str, name: str) -> bool:
        return name in self._own_names and os.path.realpath(path) in self.leave_out

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(map(os.path.basename, self.leave_out))

    def _pattern(self, pattern: str, skipped: Skipped) -> Iterator[Input]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        base = "/".join(parts[:fixed]) or ("/" if fixed else "")
        found = False
        for each in self._matching(base, _and_none({tuple(part for part in parts[fixed:] if part)}), skipped):
            found = True
            yield each
        if not found:
            yield Input(pattern, Problem("file_not_found", "No file matches this pattern."))

    def _matching(self, folder: str, wanted: frozenset[_Parts], skipped: Skipped) -> Iterator[Input]:
        """What fits below `folder`; each path once, however many ways a pattern with two `**` fits it."""
        try:
            for name, kind in _listing(folder or "."):
                path = os.path.join(folder, name)
                is_folder = kind == FOLDER or (kind == LINK and os.path.isdir(path))
                rest = _after(name, wanted, through=kind != LINK or not is_folder)
                if not rest or self._is_ours(path, name):
                    continue
                if not rest.isdisjoint(_NOTHING_MORE):
                    if is_folder:
                        yield from self._walk(path, skipped)
                    elif kind != OTHER:
                        yield Input(path)
                elif is_folder:
                    yield from self._matching(path, rest, skipped)
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # then nothing fits, which is no trouble
                yield _unreadable(folder or ".", error)


_Parts = tuple[str, ...]
_NOTHING_MORE: frozenset[_Parts] = frozenset({(), ("**",)})


def _and_none(wanted: Iterable[_Parts]) -> frozenset[_Parts]:
    """`**` stands for no folder, too."""
    every = set(wanted)
    for parts in list(every):
        while len(parts) > 1 and parts[0] == "**":
            parts = parts[1:]
            every.add(parts)
    return frozenset(every)


def _after(name: str, wanted: frozenset[_Parts], *, through: bool) -> frozenset[_Parts]:
    """What is left of the patterns below `name`. `**` goes `through` folders, and not through links to folders."""
    rest: set[_Parts] = set()
    for parts in wanted:
        if not parts or (name.startswith(".") and not parts[0].startswith(".")):
            continue
        if parts[0] != "**":
            if fnmatchcase(name, parts[0]):
                rest.add(parts[1:])
        elif through:
            rest.add(parts)
    return _and_none(rest)


def _unreadable(folder: str, error: OSError) -> Input:
    return Input(folder, Problem("unreadable_folder", f"{error.strerror or error}.", passing=True))


def _listing(folder: str, spill: int = SPILL) -> Iterator[tuple[str, bytes]]:
    """Names and kinds, by name; not more than `spill` of them in memory. Raises `OSError` when asked for the first."""
    with ExitStack() as stack:
        runs: list[Iterable[tuple[str, bytes]]] = []
        run: list[tuple[str, bytes]] = []
        file: IO[bytes] | None = None
        with os.scandir(folder) as entries:
            for entry in entries:
                run.append((entry.name, _kind(entry)))
                if len(run) == spill:
                    file = file or stack.enter_context(tempfile.TemporaryFile())
                    runs.append(_spilled(sorted(run), file))
                    run = []
        run.sort()
        yield from heapq.merge(*runs, run)


def _kind(entry: os.DirEntry[str]) -> bytes:
    if entry.is_symlink():
        return LINK
    if entry.is_dir(follow_symlinks=False):
        return FOLDER
    return FILE if entry.is_file(follow_symlinks=False) else OTHER


def _spilled(run: list[tuple[str, bytes]], file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    start = file.tell()
    try:
        file.writelines(kind + os.fsencode(name) + b"\0" for name, kind in run)
        file.flush()
    except OSError as error:
        sentence = f"A large folder cannot be sorted in {tempfile.gettempdir()} (TMPDIR): {error.strerror}."
        raise InputsError(sentence) from error
    return _read_back(file.fileno(), start, file.tell())


def _read_back(descriptor: int, at: int, end: int) -> Iterator[tuple[str, bytes]]:
    rest = b""
    while at < end:
        chunk = os.pread(descriptor, min(64 * 1024, end - at), at)
        at += len(chunk)
        *whole, rest = (rest + chunk).split(b"\0")
        for each in whole:
            yield os.fsdecode(each[1:]), each[:1]


def _open_list(name: str) -> IO[bytes]:
    try:
        return open(name, "rb")
    except OSError as error:
        raise InputsError(f"The list {name} cannot be read: {error.strerror}.") from error


def _listed(name: str) -> Iterator[Input]:
    """The files that a list names, one a line, empty lines passed over."""
    # Standard input through a descriptor of our own: at the end of the process nobody waits for whoever reads it.
    with open(os.dup(0), "rb") if name == STANDARD_INPUT else _open_list(name) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                raise InputsError(f"Line {number} of the list {name} is too long for a path: write one path a line.")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # editors on Windows begin a file with it
            if path := os.fsdecode(line.rstrip(b"\r\n")):
                yield Input(path)
