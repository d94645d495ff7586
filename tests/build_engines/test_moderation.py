from __future__ import annotations

import json

import pytest

from build_engines.errors import SourceError
from build_engines.moderation import CATEGORIES, read_moderation

LABELS = ("safe", "nude", "blood")


def read(document: object) -> dict[str, object]:
    """The document as a file, for a classifier of `LABELS`."""
    return read_moderation(json.dumps(document).encode(), LABELS)


def test_labels_get_categories_and_thresholds() -> None:
    """Some of the classes are reported, two of them as one category if need be; the others are harmless."""
    document = {
        "nude": {"category": "sexual", "threshold": 0.5},
        "blood": {"category": "violence/graphic", "threshold": 1},
    }
    assert read(document) == document


def test_the_categories_are_those_of_the_api() -> None:
    """Thirteen, each once: what clients of the moderation API look for."""
    assert len(set(CATEGORIES)) == len(CATEGORIES) == 13


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "must hold an object"),
        ({}, "must hold an object"),
        ({"gore": {"category": "violence", "threshold": 0.5}}, "names the label 'gore', and the model has safe, nude"),
        ({"nude": 0.5}, "must give 'nude' a category and a threshold, and nothing else"),
        ({"nude": {"category": "sexual"}}, "a category and a threshold"),
        ({"nude": {"category": "sexual", "threshold": 0.5, "weight": 1}}, "and nothing else"),
        (
            {"nude": {"category": "nudity", "threshold": 0.5}},
            "the category 'nudity': it is one of harassment, .*sexual",
        ),
        ({"nude": {"category": ["sexual"], "threshold": 0.5}}, r"the category \['sexual'\]"),
        ({"nude": {"category": "sexual", "threshold": 1.1}}, "is 1.1: it must be a number from 0 to 1"),
        ({"nude": {"category": "sexual", "threshold": True}}, "is True: it must be a number"),
        ({"nude": {"category": "sexual", "threshold": float("nan")}}, "is nan: it must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(document: object, words: str) -> None:
    """The error names the label and what is wrong with it."""
    with pytest.raises(SourceError, match=words):
        read(document)


@pytest.mark.parametrize(
    "content", [b"{", b"\xff", b'{"nude": {}, "nude": {}}', b"[" * 100_000, b" " * (1 << 20) + b"1"]
)
def test_what_is_no_such_file_is_refused(content: bytes) -> None:
    """Broken JSON, a name twice, a nest without end, and a megabyte of blanks."""
    with pytest.raises(SourceError, match="moderation file cannot be read"):
        read_moderation(content, LABELS)
