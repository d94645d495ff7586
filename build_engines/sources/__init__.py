"""Where models come from. `find_source` turns what a user names into a `Source`; a `Source` loads a `Network`.

A source knows its library's own way to prepare a picture, and its `reference` is the model itself in FP32,
as that library runs it. The graph is ours. The gate compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from build_engines.errors import SourceError
from build_engines.sources.libraries import MissingPackage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.preprocessing import Normalisation

INPUT = "PREPROCESSED_IMAGE"
OUTPUTS = {"classify": "CLASSIFICATION", "embed": "EMBEDDING"}
"""What a network of each task gives: FP32 [N, classes], probabilities, or FP32 [N, dim], features."""
POOLS = ("class", "patches", "class+patches")
"""What features of a DINO transformer are made of: its class token, the mean of its patches, or one after the other."""


@dataclass(frozen=True)
class Network:
    """A source's model, loaded."""

    task: str
    """A key of `OUTPUTS`."""
    graph: bytes
    """ONNX: `INPUT` UINT8 [N, size, size, 3] → the task's output FP32 [N, width]; normalising and softmax inside."""
    reference: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
    """The source model in FP32: pixels as the source's own `preprocess()` gives them → what the output should be.

    Normalises by the source's own constants, not by the graph's. Takes and gives arrays of the graph's shapes.
    """
    width: int
    """Classes, or dimensions of a feature."""
    labels: tuple[str, ...] | None = None
    """Names of the classes, where the source knows them."""
    module: Any = field(default=None, repr=False)
    """The torch module with the graph's input and output, where there is one."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """What callers are told beside the task, as parameters of the served model: `normalised`, `moderation`."""


class Source(Protocol):
    """Something that models are built from. All methods raise `BuildError`s only."""

    @property
    def name(self) -> str:
        """As it stands in certificates, and on the command line that builds it again."""
        ...

    @property
    def task(self) -> str:
        """A key of `OUTPUTS`."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What a model made of it depends on, quickly and without loading it: JSON values.

        At least `name`, `weights` ("pretrained", "file" or "random") and the `sha256` of the weights
        (absent for random ones); versions of the libraries that define the network.
        """
        ...

    def preprocess(self) -> Mapping[str, Any] | None:
        """The content of a `preprocess.json` from the library's own data configuration; None if there is none."""
        ...

    def load(self, normalisation: Normalisation) -> Network:
        """The model with `normalisation` folded into its graph."""
        ...


@dataclass(frozen=True)
class Wish:
    """What a user may say about a source beside its name; None leaves it to the source."""

    weights: str | None = None
    """A file's path, "pretrained" (from the library's hub or package) or "random"."""
    classes: int | None = None
    size: int | None = None
    """Side of the input in pixels."""
    task: str | None = None
    """A key of `OUTPUTS`."""
    recipe: Mapping[str, Any] | None = None
    """A `preprocess.json`: how the weights in a file were trained, which no library knows."""
    normalise: str | None = None
    """Of features: "l2", which is what None means, or "none"."""
    pool: str | None = None
    """One of `POOLS`; None is "class"."""
    head: Path | None = None
    """A file with a linear classifier of the features (see `heads`)."""


def find_source(name: str, wish: Wish | None = None) -> Source:
    """The source that `name` means; `SourceError` lists what there is.

    A file's path (`.onnx`, `.pt2`, `.pt`, `.ts`), `efficientnet_lite0` or `open_nsfw`, `torchvision/NAME`,
    `timm/NAME`, a DINO backbone (`dinov2_vits14`, …), or a bare name, which torchvision is asked for first and timm
    second. Features come in the length that the wish says; with its head they become a classifier.
    """
    from build_engines.sources import features, heads

    wish = wish or Wish()
    if wish.head is None:
        return features.finished(_find_bare(name, wish), wish)
    head = heads.of(wish)
    return heads.Headed(_find_bare(name, replace(wish, task="embed")), wish.head, head)


def _find_bare(name: str, wish: Wish) -> Source:
    from build_engines.sources.packaged import PACKAGED

    if name in PACKAGED:
        return PACKAGED[name].with_wish(wish)
    match Path(name).suffix.lower():
        case ".onnx":
            from build_engines.sources.onnx_file import OnnxFile

            return OnnxFile.of(Path(name), wish)
        case ".pt2" | ".pt" | ".ts":
            from build_engines.sources.torch_files import TorchFile

            return TorchFile.of(Path(name), wish)
        case ".pth" | ".safetensors" | ".ckpt" | ".bin":
            raise SourceError(f"{name} holds weights only: name the network, and give this file with --weights.")
    return _find_network(name, wish, list(PACKAGED))


def whole_network_task(file: Path, wish: Wish) -> str:
    """The task of a file that holds a whole network, not only weights; `SourceError` when the wish is not possible."""
    parts = (("weights", wish.weights), ("classes", wish.classes), ("size", wish.size), ("pooling", wish.pool))
    for what, wanted in parts:
        if wanted is not None:
            raise SourceError(f"{file} is a whole network: its {what} cannot be chosen.")
    if not file.is_file():
        raise SourceError(f"There is no file {file}.")
    return known_task(wish.task or "classify")


def known_task(task: str) -> str:
    """`task`, or `SourceError` when there is none of that name."""
    if task not in OUTPUTS:
        raise SourceError(f"There is no task {task}: {', '.join(OUTPUTS)}.")
    return task


def _find_network(name: str, wish: Wish, packaged: list[str]) -> Source:
    """A network of the torch libraries."""
    from build_engines.sources import torch_models

    try:
        source = torch_models.find(name, wish)
        known = [] if source else torch_models.names()
    except MissingPackage as error:
        near = _near(name, packaged)
        raise SourceError(f"{name} is not among the packaged models ({', '.join(packaged)}).{near} {error}") from error
    if source is None:
        raise SourceError(
            f"There is no network {name}.{_near(name, [*packaged, *known])} Networks are {', '.join(packaged)}, "
            "torchvision/NAME, timm/NAME, dino_…, dinov2_… and dinov3_… names, and the files .onnx, .pt2, .pt and .ts."
        )
    return source


def _near(name: str, known: list[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(set(known)), n=3)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
