from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from build_engines.text.serving.words import MAX_CHARS, MAX_WORD_CHARS, find_words, read_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Oil falls, shares rise: 3 banks", "oil falls shares rise 3 banks"),
        ("quot;It#39;s not-so_bad", "quot it 39 s not so bad"),
        ("Caf\u00e9 CAFE\u0301 \ufb01ne \uff21\uff22", "caf\u00e9 caf\u00e9 fine ab"),
        ("Straße STRASSE", "strasse strasse"),
        ("Σίσυφος ΣΙΣ", "σίσυφοσ σισ"),
        ("नमस्ते दुनिया", "नमस्ते दुनिया"),
        ("สวัสดี ok", "ส วั ส ดี ok"),
        ("東京タワーは高い。", "東 京 タ ワ ー は 高 い"),
        ("한국어 한국", "한국어 한국"),
        ("\U0001f642\U0001f44d\u200d \u2026", ""),
        ("one\0two\u2028three\tfour\nfive", "one two three four five"),
        ("", ""),
        (" \u3000\r\n", ""),
    ],
)  # fmt: skip
def test_words_of_many_scripts(text: str, words: str) -> None:
    """Case, composition and width make no difference; what is no letter, mark or digit divides words."""
    assert find_words(text) == words.split()


def test_bytes_that_are_not_utf8_divide_words() -> None:
    """A text is never refused: broken bytes stand between words, also half a character at the end."""
    assert find_words(b"\xff\xfeone\xc3two \xe2\x82") == ["one", "two"]
    assert find_words("caf\u00e9 \u6771".encode()) == ["caf\u00e9", "\u6771"]


def test_a_long_text_is_cut() -> None:
    """So many characters, words, and characters of a word are read, whatever follows."""
    assert find_words("a " * MAX_CHARS) == ["a"] * (MAX_CHARS // 2)
    assert find_words("x" * 5000) == ["x" * MAX_WORD_CHARS]
    assert "end" not in find_words(" " * MAX_CHARS + "end")
    assert "end" not in find_words("\u00e9" + " " * MAX_CHARS + "end")
    assert len(find_words("a" + "\u0316\u0301" * 50_000)[0]) <= MAX_WORD_CHARS


def test_a_long_decomposed_text_is_cut_at_the_same_place() -> None:
    """The limit counts characters as they are after composing them."""
    text = "\ud55c\uad6d\uc5b4 " * (MAX_CHARS // 2)
    assert find_words(unicodedata.normalize("NFD", text)) == find_words(text)


@pytest.mark.parametrize("unseen", [*"\u00ad\u200b\u200d\u2060\ufeff\u202e\u034f\ufe0f\u3164\U000e0041\U000e0100"])
def test_what_nobody_sees_hides_no_word(unseen: str) -> None:
    """A soft hyphen or another character without a shape changes no word, and however many there are, all is read."""
    assert read_words(f"I {unseen}ki{unseen}ll{unseen}") == (["i", "kill"], True)
    assert read_words(f"caf{unseen}e{unseen}\u0301") == (["caf\u00e9"], True)
    assert read_words(unseen * MAX_CHARS + " kill") == (["kill"], True)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", True),
        ("a" * MAX_CHARS, True),
        ("a" * (MAX_CHARS + 1), False),
        ("\u00e9" * MAX_CHARS, True),
        ("e\u0301" * MAX_CHARS, True),  # as many characters when they are composed
        ("\u00e9" * MAX_CHARS + "a", False),
        ("e\u0301" * MAX_CHARS + " kill", False),
        ("\ufdfa" * (MAX_CHARS // 18), True),
        ("\ufdfa" * (MAX_CHARS // 18 + 1), False),  # each becomes 18 characters
        ("\u0390" * MAX_CHARS, True),  # without upper case three characters, which are one when composed
        ("\u1e9e" * (MAX_CHARS // 2), True),
        ("\u1e9e" * (MAX_CHARS // 2 + 1), False),  # becomes ss
        ("\u0301" * 50_000 + " kill", True),
        ("\u200b" * 10_000_000, False),
        ("\U000e0041" * 10_000_000, False),
    ],
)
def test_a_text_is_read_to_its_end_or_said_not_to_be(text: str, whole: bool) -> None:
    """Bytes or characters: whoever asks about a text is told where its end may hold words that were not read."""
    assert read_words(text)[1] is read_words(text.encode())[1] is whole


@given(
    st.text(max_size=60), st.integers(0, MAX_CHARS), st.sampled_from(["a", " ", "\u00e9", "\ufdfa", "\u200b", "\u0301"])
)
def test_no_padding_swallows_the_last_word(text: str, padding: int, character: str) -> None:
    """Whatever stands before it and however much: the last word is read, or the text is said to be too long."""
    words, whole = read_words(f"{text}{character * padding} kill")
    assert not whole or words[-1] == "kill"


@given(st.text(max_size=200))
@example("\u0345\u03b9\u0301")
@example("\u1e9e\u0130\u01f0")
def test_every_text_has_words_that_can_be_joined(text: str) -> None:
    """Composed or not, as bytes or characters, in capitals that can be undone: the same words, none with a space."""
    words = find_words(text)
    assert find_words(unicodedata.normalize("NFD", text)) == words
    assert find_words(unicodedata.normalize("NFC", text)) == words
    assert find_words(text.encode("utf-8", "replace")) == find_words(text.encode("utf-8", "replace").decode())
    assert all(word and len(word) <= MAX_WORD_CHARS and not word.isspace() and " " not in word for word in words)
    assert find_words(" ".join(words)) == words or any(len(word) == MAX_WORD_CHARS for word in words)
