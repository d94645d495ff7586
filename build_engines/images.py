"""Sets of pictures to calibrate and to judge with: a user's own, or made up.

Layouts: a folder with a `labels.csv` (columns `file` and `label` or `name`, `class_id`, or both), a folder with
a sub-folder for each class, or a flat folder without labels.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from build_engines.errors import ImageSetError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif"))
PARTS = 10  # of each sample
SAMPLES = Path(__file__).parents[1] / "examples" / "photos"


@dataclass(frozen=True)
class Picture:
    """One picture, and what it shows if that is known: by the class's label, by its number, or both."""

    path: Path
    label: str | None = None
    class_id: int | None = None
    content: bytes | None = None
    """Of a picture that is in no file."""

    def read(self) -> bytes:
        if self.content is not None:
            return self.content
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ImageSetError(f"{self.path} cannot be read ({error.strerror}).") from error


@dataclass(frozen=True)
class ImageSet:
    """Pictures in a fixed order."""

    kind: str
    """Whose they are: "given" by the user, or "built-in", whose labels may not be the model's."""
    pictures: Sequence[Picture]

    def __len__(self) -> int:
        return len(self.pictures)

    def part(self, text: str | None) -> ImageSet:
        """Every N-th picture, beginning with the K-th: `text` is "K/N"; all of them without it."""
        if text is None:
            return self
        try:
            k, n = map(int, text.split("/"))
        except ValueError:
            k, n = 0, 0
        if not 1 <= k <= n:
            raise ImageSetError(f"The part {text} is not K/N with K from 1 to N, such as 1/2.")
        part = self.pictures[k - 1 :: n]
        if not part:
            raise ImageSetError(f"The part {text} of {len(self)} pictures is empty.")
        return ImageSet(self.kind, part)

    def truth(self, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        """The class of each picture as a number into `labels`, [n]; -1 where it is not known.

        A picture's label counts before its number, because labels are what callers will read; the number only
        decides between classes of the same name. Labels may hold synonyms between commas. `ImageSetError` when
        most names are none of `labels`.
        """
        import numpy as np

        numbers: dict[str, set[int]] = {}
        for index, label in enumerate(labels):
            for name in (label, *label.split(",")):
                numbers.setdefault(_folded(name), set()).add(index)
        truth = np.full(len(self), -1, np.int64)
        missing = []
        for index, picture in enumerate(self.pictures):
            if picture.label is not None:
                found = numbers.get(_folded(picture.label), set())
                if picture.class_id in found or len(found) == 1:
                    truth[index] = picture.class_id if picture.class_id in found else min(found)
                elif not found:
                    missing.append(picture.label)
            elif picture.class_id is not None and 0 <= picture.class_id < len(labels):
                truth[index] = picture.class_id
        if len(missing) > len(self) / 2 and self.kind == "given":
            raise ImageSetError(
                f"{len(missing)} of {len(self)} pictures have names that labels.txt does not have, "
                f"such as {missing[0]!r}: name them as labels.txt does."
            )
        return truth


def read_images(path: Path) -> ImageSet:
    """The pictures of a folder; `ImageSetError` when there are none, or its labels.csv cannot be used."""
    if not path.is_dir():
        raise ImageSetError(f"There is no folder of pictures at {path}.")
    if (path / "labels.csv").is_file():
        pictures = _from_table(path / "labels.csv")
    else:
        pictures = [
            Picture(file, label=file.parent.name if file.parent != path else None)
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in SUFFIXES and file.is_file()
        ]
    if not pictures:
        raise ImageSetError(f"There are no pictures in {path} (looked for {', '.join(sorted(SUFFIXES))}).")
    return ImageSet("given", pictures)


def built_in() -> ImageSet:
    """What there is to judge with where the user gave nothing: the sample photos, and parts of them.

    Real photos, because a network that looks at noise is sure of nothing, and then small differences decide.
    """
    samples = read_images(SAMPLES).pictures
    parts = [
        Picture(Path(f"{sample.path.stem}-{index}.png"), content=part)
        for sample in samples
        for index, part in enumerate(_parts(sample.read()))
    ]
    return ImageSet("built-in", [*samples, *parts])


def _parts(photo: bytes) -> list[bytes]:
    """Cuttings of a photo, some mirrored, always the same, as PNG files."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(20)
    parts = []
    with Image.open(io.BytesIO(photo)) as picture:
        for index in range(PARTS):
            side = int(min(picture.size) * random.uniform(0.45, 1))
            left, top = (int(random.uniform(0, length - side)) for length in picture.size)
            part = picture.convert("RGB").crop((left, top, left + side, top + side))
            file = io.BytesIO()
            (part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if index % 2 else part).save(file, "PNG")
            parts.append(file.getvalue())
    return parts


def _from_table(table: Path) -> list[Picture]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            Picture(
                table.parent / row["file"],
                label=row.get("label") or row.get("name") or None,
                class_id=int(row["class_id"]) if row.get("class_id") else None,
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ImageSetError(
            f"{table} cannot be used ({type(error).__name__}: {error}): it needs the columns file and label "
            "(or name), or class_id."
        ) from error


def _folded(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()
