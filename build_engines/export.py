"""A torch network → ONNX from UINT8 pixels to the task's output, normalising and softmax inside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from build_engines.errors import GraphError, SourceError
from build_engines.onnx_graph import LARGEST, OPSET, finished
from build_engines.sources import INPUT, OUTPUTS
from build_engines.sources.features import SHORTEST

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.preprocessing import Normalisation


class Served(torch.nn.Module):  # type: ignore[misc]  # torch is Any where it is not installed
    """UINT8 [N, size, size, 3] in the order of `normalisation.color` → FP32 [N, width], around a network for
    normalised FP32 [N, 3, size, size].

    `color` is the order that the network wants; without `softmax` its outputs are passed on as they are.
    """

    mean: torch.Tensor
    std: torch.Tensor
    order: torch.Tensor

    def __init__(
        self, network: torch.nn.Module, normalisation: Normalisation, *, softmax: bool, color: str = "RGB"
    ) -> None:
        super().__init__()
        self.network = network
        self.softmax = softmax
        self.size = normalisation.size
        self.swap = normalisation.color != color
        self.register_buffer("mean", torch.tensor(normalisation.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(normalisation.std, dtype=torch.float32))
        self.register_buffer("order", torch.tensor([2, 1, 0]))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = (pixels.float() - self.mean) / self.std
        if self.swap:
            x = x.index_select(3, self.order)
        # Contiguous, or pooling is exported as it is for channels-last memory: with index arithmetic.
        y: torch.Tensor = self.network(x.permute(0, 3, 1, 2).contiguous())
        return torch.softmax(y, dim=1) if self.softmax else y


class UnitLength(torch.nn.Module):  # type: ignore[misc]
    """Features FP32 [N, dim] of `served` divided by their lengths."""

    def __init__(self, served: torch.nn.Module) -> None:
        super().__init__()
        self.served = served

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.served(pixels), dim=1, eps=SHORTEST)


class Headed(torch.nn.Module):  # type: ignore[misc]
    """Probabilities FP32 [N, classes] by a linear head, weight [classes, dim] and bias [classes], on `served`."""

    def __init__(self, served: torch.nn.Module, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> None:
        super().__init__()
        self.served = served
        self.head = torch.nn.Linear(weight.shape[1], len(weight))
        self.head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.served(pixels)), dim=1)


def width(served: Served) -> int:
    """The number of outputs, found by running it; `SourceError` when it does not take pictures of this size."""
    try:
        with torch.inference_mode():
            answer = served(_pictures(served))
    except Exception as error:  # networks assert, index and multiply
        raise SourceError(
            f"The network does not take pictures of {served.size} × {served.size} ({first_line(error)}): "
            "name its size with --size, or change the size in preprocess.json."
        ) from error
    if not isinstance(answer, torch.Tensor) or answer.dim() != 2 or len(answer) != 2:
        raise SourceError("The network does not give one row of numbers for each picture.")
    return int(answer.shape[1])


def export(served: Served, task: str) -> bytes:
    """The content of an ONNX file with the input `INPUT` and the output of `task`, for any number of pictures.

    The same bytes from the same weights. Raises `GraphError` when the network cannot be exported.
    """
    weights = [*served.parameters(), *served.buffers()]
    if sum(weight.numel() * 4 for weight in weights) >= LARGEST:
        raise GraphError("The network's weights are larger than an ONNX file can be (2 GB in FP32).")
    for part in served.modules():
        if hasattr(part, "fused_attn"):  # timm's; written out, attention needs no arithmetic with shapes
            part.fused_attn = False
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                served,
                (_pictures(served),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("N")},),
                input_names=[INPUT],
                output_names=[OUTPUTS[task]],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever a network does can be what torch cannot export
        raise GraphError(f"The network cannot be exported to ONNX ({first_line(error)}).") from error
    assert program is not None
    return finished(program.model_proto)


def _pictures(served: Served) -> torch.Tensor:
    """Two, so that the exporter does not take their number for a constant."""
    return torch.zeros(2, served.size, served.size, 3, dtype=torch.uint8)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of torch's exporters about their own deprecated parts, and their logs of what they try.

    What goes wrong inside comes as an exception.
    """
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def first_line(error: Exception) -> str:
    """An error of torch for a message: without its traces."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
