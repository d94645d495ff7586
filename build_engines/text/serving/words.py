"""Text → words. Training and Triton load this very file, so that both find the same words in a text.

A word is a run of letters, digits and the marks that belong to them, in Unicode's compatible composed form (NFKC) and
without upper case. What a reader does not see (soft hyphens, joiners, spaces of no width, marks of direction) is taken
out first, and so hides no word. Where a script puts no spaces between words (Chinese, Japanese, Thai, Lao, Khmer,
Burmese) every character is one. All else (spaces, punctuation, emoji, control characters, bytes that are not UTF-8)
divides words.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 32 * 1024
"""Of a normalised text; what comes behind is not read, and `read_words` says so. What the gateway takes (32 KiB) is
read to its end, but for texts whose characters come apart into many."""

MAX_WORD_CHARS = 64
"""A longer word counts as the one that it begins with."""

# As much as is needed for `MAX_CHARS`: less where characters come apart into many, more where they are put together.
_RAW_CHARS = (MAX_CHARS // 8, MAX_CHARS + 200, 4 * MAX_CHARS)
_UNSETTLED = 64  # at the end of a part of a text: characters that what follows may change
_MAX_MARKS = 30  # on one letter, as in Unicode's stream-safe text format; ordering n marks takes n² steps

# What Unicode lets a reader not see (Default_Ignorable_Code_Point), besides the category Cf.
_UNSEEN = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),  # places without a letter in Korean syllables
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2065, 0x2065),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),  # choices between forms of a character
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),
)

# Blocks of scripts without spaces between words; punctuation inside is no letter and so divides.
_SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Chinese characters, and their extensions
    (0x4E00, 0x9FFF),
    (0xAA60, 0xAA7F),  # more Burmese
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x20000, 0x323AF),
)


def find_words(text: bytes | str) -> list[str]:
    """The words of a text, in order, none empty, none with a space in it; of a text that is too long its first ones.

    Bytes are read as UTF-8; what is not UTF-8 divides words. Never fails.
    """
    return read_words(text)[0]


def read_words(text: bytes | str) -> tuple[list[str], bool]:
    """The words of a text, and whether it was read to its end: else there may be words behind them."""
    # One character more than are looked at, of four bytes at most: so a cut is always seen.
    if isinstance(text, bytes):
        text = text[: 4 * (_RAW_CHARS[-1] + 1)].decode("utf-8", "replace")
    if text.isascii():
        found, whole = _ASCII_WORD.findall(text[:MAX_CHARS].lower()), len(text) <= MAX_CHARS
    else:
        normalised, whole = _normalised(text)
        found = _WORD.findall(normalised)
    return [word[:MAX_WORD_CHARS] for word in found], whole


def _normalised(text: str) -> tuple[str, bool]:
    """NFKC without upper case, and whether that is all of it.

    Composed a second time, because some letters come apart when they lose their case.
    """
    whole = len(text) <= _RAW_CHARS[-1]
    text = _HIDDEN.sub("", text[: _RAW_CHARS[-1]])
    for length in _RAW_CHARS:
        composed = unicodedata.normalize("NFKC", _PILE.sub(r"\1", text[:length]))
        if len(text) <= length or len(composed) > MAX_CHARS + _UNSETTLED:
            break
    lowered = unicodedata.normalize("NFKC", composed[:MAX_CHARS].casefold())
    return lowered[:MAX_CHARS], whole and max(len(composed), len(lowered)) <= MAX_CHARS


def _is_spaceless(code: int) -> bool:
    return any(first <= code <= last for first, last in _SPACELESS)


def _ranges(codes: list[int]) -> str:
    """The inside of a character class with these code points, which ascend."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A word, too many marks on one letter, and what is not seen."""
    letters, marks, spaceless = [], [], []
    hidden = {code for first, last in _UNSEEN for code in range(first, last + 1)}
    hidden |= {code for code in range(0x80, 0x32400) if unicodedata.category(chr(code)) == "Cf"}
    for code in range(0x80, 0x32400):  # behind it there are no letters yet, and marks that change no meaning
        category = unicodedata.category(chr(code))[0]
        if category == "M":
            marks.append(code)
        if category in "LN" and _is_spaceless(code):
            spaceless.append(code)
        elif category in "LMN":
            letters.append(code)
    # The lookaheads change nothing, and spare ASCII the search through hundreds of ranges.
    mark, letter, single, unseen = (
        f"(?![\\x00-\\x7f])[{_ranges(codes)}]" for codes in (marks, letters, spaceless, sorted(hidden))
    )
    word = f"{single}(?:{mark})*|(?:[0-9a-z]+|(?:{letter})+)+"
    return re.compile(word), re.compile(f"((?:{mark}){{{_MAX_MARKS}}})(?:{mark})+"), re.compile(f"(?:{unseen})+")


_ASCII_WORD = re.compile("[0-9a-z]+")
_WORD, _PILE, _HIDDEN = _patterns()
