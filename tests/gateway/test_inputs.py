"""What tells images and texts apart on their way."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.errors import BadUpstreamResponse, ItemProblem
from gateway.images import ImageLimits
from gateway.inputs import TEXTS_AN_IMAGE, Images, Texts
from gateway.triton.model import TEXT_CLASSIFY, TEXT_EMBED, Model, Task
from tests.pictures import encode, noise

IMAGES = Images(ImageLimits(10**6, 10**6))
TEXTS = Texts(max_bytes=10)


def model(task: Task) -> Model:
    return Model("m", "1", task, 8, frozenset())


def code(item: bytes | ItemProblem) -> str:
    return item.code if isinstance(item, ItemProblem) else "ok"


def test_images_are_looked_at_before_anybody_is_asked() -> None:
    """What is no picture, or empty, gets no place in Triton's queue."""
    picture = encode(noise(8, 8))
    assert IMAGES.inspect(picture) is picture
    assert [code(IMAGES.inspect(file)) for file in (b"", b"junk")] == ["empty_image", "unsupported_image"]


def test_the_preprocessors_verdicts() -> None:
    """Each status is one problem; a status that nobody knows is no answer."""
    verdicts = IMAGES.verdicts(np.array([[0], [1], [2], [3], [4]]), model(TEXT_CLASSIFY))
    assert [each and each.code for each in verdicts] == [
        None,
        "empty_image",
        "unsupported_image",
        "corrupt_image",
        "image_too_large",
    ]
    with pytest.raises(BadUpstreamResponse):
        IMAGES.verdicts(np.array([[0], [9]]), model(TEXT_CLASSIFY))


def test_texts_are_weighed_in_bytes_of_utf8() -> None:
    """Five times é fits where ten bytes are allowed; spaces of any kind are no text."""
    texts = ["a", "ééééé", "éééééé", "", " \n\u3000\u2003"]
    found = [code(TEXTS.inspect(text.encode())) for text in texts]
    assert found == ["ok", "ok", "text_too_large", "empty_text", "empty_text"]


def test_a_text_without_a_known_word_has_a_label_and_no_direction() -> None:
    """A classifier says what is usual, and how little it knew; an embedding of nothing would be made up."""
    known = np.array([[0.5], [0.0]], np.float32)
    assert TEXTS.verdicts(known, model(TEXT_CLASSIFY)) == [None, None]
    assert [each and each.code for each in TEXTS.verdicts(known, model(TEXT_EMBED))] == [None, "unknown_text"]


def test_a_text_that_was_not_read_to_its_end() -> None:
    """A share below zero says so, whatever the task: nothing is said of a part of a text."""
    for task in (TEXT_CLASSIFY, TEXT_EMBED):
        (verdict,) = TEXTS.verdicts(np.array([[-1]], np.float32), model(task))
        assert verdict is not None
        assert verdict.code == "text_too_large"


def test_texts_weigh_less_than_images() -> None:
    """So many of them count as one, and one counts; one that is as long as several counts as those."""
    assert TEXTS.weight(1, 32 * 1024) == 2
    assert [TEXTS.weight(n) for n in (0, 1, TEXTS_AN_IMAGE, TEXTS_AN_IMAGE + 1)] == [0, 1, 1, 2]
    assert IMAGES.weight(7) == 7
