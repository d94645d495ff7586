from __future__ import annotations

import json

import pytest

from build_engines.errors import SourceError
from build_engines.preprocessing import Normalisation, read_normalisation
from tests.build_engines.conftest import CLASSIFIER

GOOD = {"size": 224, "color": "RGB", "mean": [1, 2, 3], "std": [4, 5, 6]}


def test_the_shipped_file_is_read() -> None:
    """The default classifier takes 224 pixels, RGB, (x - 127) / 128."""
    shipped = read_normalisation((CLASSIFIER / "preprocess.json").read_bytes())
    assert shipped == Normalisation(224, "RGB", (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": None},
        {"size": 0},
        {"mean": 127},
        {"mean": [127, 127]},
        {"std": [128, 0, 128]},
        {"std": [128, "wide", 128]},
        {"mean": [float("nan"), 127, 127]},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    """A missing size, a mean of one number or a std of 0 is an error, not a default."""
    with pytest.raises(SourceError, match=r"preprocess\.json cannot be used"):
        read_normalisation(json.dumps(GOOD | wrong).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"size": 224}', b"\xff"])
def test_what_is_not_the_file_is_refused(content: bytes) -> None:
    """Other JSON, and no JSON at all, are errors of the same kind."""
    with pytest.raises(SourceError, match=r"preprocess\.json cannot be used"):
        read_normalisation(content)
