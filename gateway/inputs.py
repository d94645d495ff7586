"""What models are asked about: images, or texts. Here is all that tells the two apart on their way to Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from prometheus_client import Counter

from gateway.batches import Batch, make_image_batches, make_text_batches
from gateway.errors import BadUpstreamResponse, ItemProblem
from gateway.images import EncodedImage, ImageLimits, inspect
from gateway.observe import metrics
from gateway.triton.model import TEXT_EMBED, Model
from gateway.triton.tensors import IMAGE_STATUS, KNOWN_WORDS

TEXTS_AN_IMAGE = 16
"""So many texts count as one image where work is admitted: a text takes 0.2 ms of a core, a photo more than 5."""
USUAL_TEXT_BYTES = 1024
"""A text that is longer counts as several."""

# The preprocessor's verdicts (IMAGE_STATUS), documented beside it in model_repository/README.md.
_STATUS: dict[int, ItemProblem] = {
    1: ItemProblem("empty_image", "The file is empty."),
    2: ItemProblem("unsupported_image", "The file is not a picture of a kind that is taken."),
    3: ItemProblem("corrupt_image", "The picture is damaged: it cannot be decoded to its end."),
    4: ItemProblem("image_too_large", "The picture has more pixels than are allowed."),
}
_EMPTY = ItemProblem("empty_text", "The text is empty, or only spaces.")
UNKNOWN_TEXT = ItemProblem("unknown_text", "The model knows none of the text's words, so it can say nothing of it.")
_NOT_READ = ItemProblem("text_too_large", "The text is longer than the model reads.")


class Inputs(Protocol):
    """A request's items as bytes, by the kind that they are."""

    @property
    def count(self) -> Counter:
        """By model and outcome."""
        ...

    @property
    def status(self) -> str:
        """The output that tells how each item fared."""
        ...

    def inspect(self, item: bytes) -> bytes | ItemProblem:
        """The item as Triton gets it, or why it is not worth asking."""
        ...

    def batches(self, items: Sequence[tuple[int, bytes]], max_batch: int) -> Sequence[Batch]: ...

    def weight(self, items: int, size: int = 0) -> int:
        """For admission, in images: of so many items that have `size` bytes together."""
        ...

    def verdicts(self, status: NDArray[Any], model: Model) -> list[ItemProblem | None]:
        """What the model itself says against each item."""
        ...


@dataclass(frozen=True)
class Images:
    """Encoded image files."""

    limits: ImageLimits
    count: Counter = metrics.IMAGES
    status: str = IMAGE_STATUS

    def inspect(self, item: bytes) -> bytes | ItemProblem:
        image = inspect(item, self.limits)
        return image.data if isinstance(image, EncodedImage) else image

    def batches(self, items: Sequence[tuple[int, bytes]], max_batch: int) -> Sequence[Batch]:
        return make_image_batches(items, max_batch)

    def weight(self, items: int, size: int = 0) -> int:
        return items

    def verdicts(self, status: NDArray[Any], model: Model) -> list[ItemProblem | None]:
        statuses = status.ravel().tolist()
        try:
            return [_STATUS[each] if each else None for each in statuses]
        except KeyError as unknown:
            raise BadUpstreamResponse(
                "The preprocessor gave an unknown status.", private=f"IMAGE_STATUS {unknown}"
            ) from unknown


@dataclass(frozen=True)
class Texts:
    """Texts in UTF-8, of at most `max_bytes` each."""

    max_bytes: int
    count: Counter = metrics.TEXTS
    status: str = KNOWN_WORDS

    def inspect(self, item: bytes) -> bytes | ItemProblem:
        if len(item) > self.max_bytes:
            words = f"The text has {len(item)} bytes in UTF-8; the limit is {self.max_bytes}."
            return ItemProblem("text_too_large", words)
        return item if item.decode("utf-8", "replace").strip() else _EMPTY

    def batches(self, items: Sequence[tuple[int, bytes]], max_batch: int) -> Sequence[Batch]:
        return make_text_batches(items, max_batch)

    def weight(self, items: int, size: int = 0) -> int:
        return as_images(items, size)

    def verdicts(self, status: NDArray[Any], model: Model) -> list[ItemProblem | None]:
        """A share below zero says that the model has not read the text to its end."""

        def verdict(share: float) -> ItemProblem | None:
            if share < 0:
                return _NOT_READ
            return UNKNOWN_TEXT if model.task is TEXT_EMBED and share == 0 else None

        return [verdict(share) for share in status.ravel().tolist()]


def as_images(texts: int, size: int) -> int:
    """What so many texts of `size` bytes together count for, where images are counted."""
    return -(-max(texts, size // USUAL_TEXT_BYTES) // TEXTS_AN_IMAGE)


def kinds(limits: ImageLimits, max_text_bytes: int) -> Mapping[str, Inputs]:
    """By `Task.of`."""
    return {"images": Images(limits), "texts": Texts(max_text_bytes)}
