"""What a person gives on the command line: files within limits, and numbers."""

from __future__ import annotations

import argparse
from pathlib import Path

from build_engines.errors import BuildError

LARGEST = 64 << 20
"""Bytes of a file with a list or a table that a person gives: labels, a recipe, ranges."""


def read_file(path: Path, error: type[BuildError], largest: int = LARGEST) -> bytes:
    """The content of a regular file of at most `largest` bytes; else an `error` that says why not.

    A device or a pipe may have no end, and is not even opened.
    """
    try:
        if path.exists() and not path.is_file():
            raise error(f"{path} cannot be read (no regular file): name a file.")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except OSError as reason:
        raise error(f"{path} cannot be read ({reason.strerror}).") from reason
    if len(content) > largest:
        raise error(f"{path} is larger than {largest >> 20} MiB, the most that is read.")
    return content


def share(text: str) -> float:
    """A number from 0 to 1, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r:.60} is no share: give a number from 0 to 1, such as 0.25")
    return value
