"""What the gateway needs from a Triton, in its own words.

`Triton` is the port; `gateway.triton.client` speaks gRPC through it, `gateway.triton.fake` answers in memory,
`gateway.triton.pool` makes several into one. One contract test runs on all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True)
class Tensor:
    """One input: `data` holds the elements row-major, little-endian, as Triton's raw contents want them."""

    name: str
    datatype: str  # Triton's name: UINT8, INT32, FP32, …
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Answer:
    """Outputs by name, and which version computed them where. BYTES outputs are object arrays of `bytes`."""

    model_version: str
    outputs: Mapping[str, NDArray[Any]]
    endpoint: str = ""


@dataclass(frozen=True)
class ModelState:
    """One line of Triton's repository index; `reason` is Triton's own and private."""

    name: str
    version: str
    ready: bool
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """One step of an ensemble: a model, and the version of it that is asked (-1: the highest that is ready)."""

    model: str
    version: int = -1


@dataclass(frozen=True)
class ModelConfig:
    """What a model's `config.pbtxt` says: batch limit, output shapes (without N), string parameters, steps."""

    name: str
    max_batch: int
    outputs: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    """Of an ensemble, in the order in which the configuration names them; empty for other models."""


class Triton(Protocol):
    """Every method raises an `UpstreamError` or `DeadlineExceeded`, never a transport's own error.

    Timeouts are in seconds, from now.
    """

    endpoint: str

    async def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        *,
        timeout: float,
        top_classes: int = 0,
    ) -> Answer:
        """One inference. With `top_classes` = k, outputs are Triton's own `value:index:label` strings."""
        ...

    async def index(self, *, timeout: float) -> list[ModelState]: ...

    async def config(self, model: str, *, timeout: float) -> ModelConfig: ...

    async def close(self) -> None: ...
