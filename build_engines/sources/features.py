"""Features of length 1: divided inside the graph, so that a scalar product is the cosine, whoever computes it.

What a picture shows is in the direction of its features: those of EfficientNet-Lite0 find a photo of the same group for
73 % of the photos by their scalar product, and for 85 % when they have length 1 (docs/adr/0015-features.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from build_engines.errors import SourceError
from build_engines.sources import Network, Source, Wish
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.preprocessing import Normalisation

LENGTHS = ("l2", "none")

SHORTEST = 1e-12
"""No feature is divided by less, as in `torch.nn.functional.normalize`: features that are all 0 stay 0."""


def finished(source: Source, wish: Wish) -> Source:
    """The source with its features in the length that the wish says; `SourceError` for a wish without an effect."""
    if wish.normalise not in (None, *LENGTHS):
        raise SourceError(f"Features have the length l2 or none, not {wish.normalise}.")
    if source.task != "embed":
        if wish.normalise is not None:
            raise SourceError(f"{source.name} gives classes, not features: leave --normalise out, or add --task embed.")
        return source
    return source if wish.normalise == "none" else UnitLength(source)


@dataclass(frozen=True)
class UnitLength:
    """A source whose features are brought to length 1."""

    source: Source

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def task(self) -> str:
        return self.source.task

    def identity(self) -> Mapping[str, Any]:
        return {**self.source.identity(), "normalised": "l2"}

    def preprocess(self) -> Mapping[str, Any] | None:
        return self.source.preprocess()

    def load(self, normalisation: Normalisation) -> Network:
        return unit_length(self.source.load(normalisation))


def unit_length(network: Network) -> Network:
    """The network with its features divided by their lengths, in graph, reference and module alike."""
    with needing("build"):
        from build_engines.onnx_graph import with_unit_length

        graph = with_unit_length(network.graph)
    module = network.module
    if module is not None:
        from build_engines.export import UnitLength as Module

        module = Module(module)
    return replace(
        network,
        graph=graph,
        reference=_of_length_1(network.reference),
        module=module,
        shown={**network.shown, "normalised": "l2"},
    )


def _of_length_1(
    run: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]],
) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]:
    import numpy as np

    def reference(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        found = run(pixels)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.asarray(found / np.maximum(lengths, SHORTEST), np.float32)

    return reference
