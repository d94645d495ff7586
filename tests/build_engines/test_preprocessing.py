from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from build_engines.errors import ImageSetError, SourceError
from build_engines.preprocessing import Normalisation, Preprocessing
from tests.build_engines.conftest import CLASSIFIER, TINY_RECIPE


def test_the_default_recipe_is_read() -> None:
    """Size, colour order, mean and std of the shipped file, and the bytes as they lie there."""
    content = (CLASSIFIER / "preprocess.json").read_bytes()
    preprocessing = Preprocessing.read(content)
    assert preprocessing.content == content
    assert preprocessing.normalisation == Normalisation(224, "RGB", (127.0,) * 3, (128.0,) * 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"std": [1, 0, 1]}, "std must be above 0"),
        ({"mean": [1, 2]}, "3 numbers"),
        ({"gamma": 2}, "unknown keys: gamma"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    """The interpreter that Triton uses says what is wrong."""
    with pytest.raises(SourceError, match=words):
        Preprocessing.of({**TINY_RECIPE, **change})


def test_pixels_are_those_of_the_preprocessor() -> None:
    """A red picture comes out red, in the recipe's order of channels and size; a broken one is an error."""
    file = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 10, 20)).save(file, "PNG")
    pixels = Preprocessing.of({**TINY_RECIPE, "color": "BGR"}).pixels(file.getvalue())
    assert pixels.shape == (14, 14, 3)
    assert np.unique(pixels.reshape(-1, 3), axis=0).tolist() == [[20, 10, 200]]
    with pytest.raises(ImageSetError, match="not a usable image"):
        Preprocessing.of(TINY_RECIPE).pixels(file.getvalue()[:40])


def test_the_pixels_have_a_hash_of_their_own() -> None:
    """Mean and std are the engine's concern: recipes that differ in nothing else can share their pixels."""
    one = Preprocessing.of(TINY_RECIPE)
    same = Preprocessing.of({**TINY_RECIPE, "mean": [1.0, 2.0, 3.0], "jpeg_quality": None})
    other = Preprocessing.of({**TINY_RECIPE, "jpeg_quality": 75})
    assert one.pixels_sha256 == same.pixels_sha256 != other.pixels_sha256
    assert one.content != same.content


def test_constants_of_another_scale_are_refused() -> None:
    """The commonest mistake: mean and std of pixels from 0 to 1."""
    with pytest.raises(SourceError, match="multiply them by 255"):
        Preprocessing.of({**TINY_RECIPE, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]})
    assert Preprocessing.of({**TINY_RECIPE, "mean": [104, 117, 123], "std": [1, 1, 1]})
    assert Preprocessing.of({**TINY_RECIPE, "mean": [0, 0, 0], "std": [1, 1, 1]})
