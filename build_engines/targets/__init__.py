"""What engines are built for: the runtime that Triton will run them in, and its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.calibration import Ranges
    from build_engines.configs import Serving
    from build_engines.sources import Network
    from build_engines.stages import Stages

    Images = npt.NDArray[np.uint8]
    Answers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Calibration:
    """What a precision may be fitted to: one of the two, as the target wants it, or nothing."""

    ranges: Ranges | None = None
    """Of the FP32 graph's activations."""
    pixels: Images | None = field(default=None, repr=False)
    """Real pictures as the model sees them."""


@dataclass(frozen=True)
class Engine:
    """A built engine, and how it answers here."""

    files: Mapping[str, bytes]
    """What Triton needs in the version's folder, by name."""
    serving: Serving
    """What its `config.pbtxt` must say."""
    layers: Mapping[str, int]
    """How many of the layers that compute (convolutions, matrix products) the runtime really runs in each
    precision ("int8", "fp16", "bf16", "fp32"), as the runtime itself reports it."""
    device: str
    """The processor that it was built and judged on."""
    run: Callable[[Images], Answers] = field(repr=False)
    """UINT8 [n, size, size, 3] → FP32 [n, width], through the engine as Triton will run it."""


class Target(Protocol):
    """One runtime. All methods raise `BuildError`s only."""

    @property
    def name(self) -> str: ...

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that can be asked of it; the first is the default where there is nothing to calibrate with."""
        ...

    @property
    def variant(self) -> str:
        """Of the configurations of its engines: "cpu", or "" for what GPU servers read."""
        ...

    @property
    def calibrates_on(self) -> str:
        """A field of `Calibration`."""
        ...

    def identity(self, precision: str) -> Mapping[str, Any]:
        """What an engine depends on beside the network: versions of the runtime, the device where it matters.

        Quick. Raises `TargetError` when this machine cannot build or run `precision`: nothing falls back.
        """
        ...

    def build(self, network: Network, precision: str, calibration: Calibration, stages: Stages) -> Engine:
        """Builds; for "int8" there is always a calibration. Raises `TargetError` with the runtime's reasons."""
        ...
