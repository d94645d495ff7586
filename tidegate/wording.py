"""What somebody else's program says → what may be shown to a person, and written into a file."""

from __future__ import annotations

import re

MOST_CHARACTERS = 200
_CODE = re.compile(r"[a-z_]{1,64}")


def code(given: object) -> str:
    """`given` if it looks like a code of the contract, else `unknown_error`."""
    return given if isinstance(given, str) and _CODE.fullmatch(given) else "unknown_error"


def sentence(given: object, instead: str) -> str:
    """`given` on one line, without control characters (a terminal would obey them), and cut if it is long; `instead` if
    nothing is left of it."""
    if not isinstance(given, str):
        return instead
    start = given[: 4 * MOST_CHARACTERS]
    shown = "".join(character if character.isprintable() else " " for character in start)
    words = " ".join(shown.split())
    if len(words) > MOST_CHARACTERS or len(start) < len(given):
        words = words[: MOST_CHARACTERS - 1] + "…"
    return words if words.strip("… ") else instead


def is_name(given: object) -> bool:
    """Whether it can be the name of a model, or of its version."""
    return isinstance(given, str) and 0 < len(given) <= MOST_CHARACTERS and given.isprintable() and bool(given.strip())
