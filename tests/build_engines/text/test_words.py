from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from build_engines.text.serving.words import MAX_CHARS, MAX_WORD_CHARS, find_words


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
        ("one\0two\u202ethree\tfour\nfive", "one two three four five"),
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
