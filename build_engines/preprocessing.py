"""What `preprocess.json` says, through its only interpreter: `imaging.py` of the model repository."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from build_engines.errors import BuildError, ImageSetError, SourceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IMAGING = Path("preprocessor", "1", "imaging.py")
OWN_REPOSITORY = Path(__file__).parents[1] / "model_repository"

# As many as the gateway lets through.
MAX_PIXELS = 64_000_000


class Recipe(Protocol):
    """`imaging.Recipe`, whose README explains the keys."""

    @property
    def size(self) -> int: ...
    @property
    def color(self) -> str: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...
    @property
    def pixels_sha256(self) -> str: ...


@dataclass(frozen=True)
class Normalisation:
    """How UINT8 pixels become the network's input: `(pixel - mean) / std` for each of three channels."""

    size: int
    """Height and width in pixels."""
    color: str
    """The order of the channels, "RGB" or "BGR"."""
    mean: tuple[float, float, float]
    """In units of pixel values, 0 to 255, in the order of `color`."""
    std: tuple[float, float, float]
    """In units of pixel values; none is 0."""


@dataclass(frozen=True)
class Preprocessing:
    """One recipe: `content` is the file as it is published and hashed."""

    content: bytes
    recipe: Recipe
    _imaging: Any

    @classmethod
    def read(cls, content: bytes) -> Preprocessing:
        """Parses the content of a `preprocess.json`; `SourceError` says what is wrong with it."""
        imaging = _load_imaging()
        try:
            recipe = imaging.Recipe.from_json(content)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{error}.") from error
        if max(recipe.std) < 1 or any(0 < value < 1 for value in recipe.mean):
            raise SourceError(
                "preprocess.json: mean and std look like those of pixels from 0 to 1, and here pixels go to 255: "
                "multiply them by 255."
            )
        return cls(content, recipe, imaging)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Preprocessing:
        """The same from the values of the keys."""
        return cls.read(json.dumps(document, indent=2).encode() + b"\n")

    @property
    def document(self) -> Mapping[str, Any]:
        """The values of the keys."""
        values: dict[str, Any] = json.loads(self.content)
        return values

    @property
    def pixels_sha256(self) -> str:
        """Of all that the pixels depend on, in hexadecimal: networks whose recipes have the same can share pixels."""
        return self.recipe.pixels_sha256

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(self.recipe.size, self.recipe.color, self.recipe.mean, self.recipe.std)

    def pixels(self, file: bytes) -> npt.NDArray[np.uint8]:
        """An image file as the model sees it: UINT8 [size, size, 3] in the recipe's order of channels.

        Raises `ImageSetError` for a file that is not a picture which the gateway would take.
        """
        try:
            pixels: npt.NDArray[np.uint8] = self._imaging.preprocess(file, self.recipe, max_pixels=MAX_PIXELS)
        except self._imaging.ImageError as error:
            raise ImageSetError(f"not a usable image ({error})") from error
        return pixels


@cache
def _load_imaging() -> ModuleType:
    """By path, as Triton does; the package's own copy, which is also the one that is put into repositories."""
    path = OWN_REPOSITORY / IMAGING
    spec = importlib.util.spec_from_file_location("tidegate_imaging", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tidegate_imaging"] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise BuildError(f"The package {error.name} is not installed: pip install 'tidegate[local]'.") from error
    except OSError as error:
        raise BuildError(f"{path} cannot be read ({error.strerror}): build from a checkout of the project.") from error
    return module
