"""Whole networks that torch saved: exported programs (`.pt2`) and TorchScript (`.pt`, `.ts`).

Both are programs: they are run here to be exported, and reading them trusts torch's readers. Take such files only
from people whose code you would run; a state dict (`--weights`) or an ONNX file asks for less trust.

They take normalised FP32 [N, 3, size, size], as classifiers do. How pictures are prepared is not in them, so a
`preprocess.json` must be there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import GraphError, SourceError
from build_engines.sources import Network, Wish, whole_network_task
from build_engines.sources.libraries import needing
from build_engines.sources.torch_models import sha256

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

    from build_engines.preprocessing import Normalisation

_BATCH = 16

# The older exporter, the only one that takes TorchScript, knows opsets up to this one well.
_SCRIPT_OPSET = 17


@dataclass(frozen=True)
class TorchFile:
    """A file that somebody exported or scripted."""

    path: Path
    task: str

    @classmethod
    def of(cls, path: Path, wish: Wish) -> TorchFile:
        """The file, or `SourceError` when it is not there or the wish is not possible."""
        return cls(path, whole_network_task(path, wish))

    @property
    def name(self) -> str:
        return self.path.name

    def identity(self) -> Mapping[str, Any]:
        with needing("torch"):
            import torch
        return {
            "name": self.name,
            "weights": "file",
            "task": self.task,
            "file": self.path.name,
            "sha256": sha256(self.path),
            "packages": {"torch": torch.__version__},
        }

    def preprocess(self) -> None:
        return None

    def load(self, normalisation: Normalisation) -> Network:
        with needing("torch"):
            from build_engines import onnx_graph
            from build_engines.export import Served, first_line, quiet
            from build_engines.sources import onnx_file

            with quiet():
                program, network = self._read()
                try:
                    model = _exported(program, normalisation.size)
                except Exception as error:  # whatever a network does can be what torch cannot export
                    raise GraphError(
                        f"{self.path} cannot be exported to ONNX as a network for FP32 [N, 3, {normalisation.size}, "
                        f"{normalisation.size}] ({first_line(error)})."
                    ) from error
            alone = onnx_graph.shape(model.graph.input[0])[:1] == [1]
            run = _original(network, self.name, normalisation, 1 if alone else _BATCH)
            served = partial(Served, network, normalisation, color=normalisation.color)
            # An exported program has no training mode to leave, and nothing traces it again.
            module = None if alone or program is not network else lambda softmax: served(softmax=softmax)
            return onnx_file.network_of(model, self.name, normalisation, self.task, run, module)

    def _read(self) -> tuple[Any, Any]:
        """What the exporter takes, and what can be called."""
        import torch

        try:
            if self.path.suffix.lower() == ".pt2":
                program = torch.export.load(self.path)
                return program, program.module()
            script = torch.jit.load(self.path, map_location="cpu").eval()
            return script, script
        except Exception as error:  # a damaged file can raise nearly anything
            what = "an exported program" if self.path.suffix.lower() == ".pt2" else "TorchScript"
            raise SourceError(
                f"{self.path} is not {what}, or is damaged ({type(error).__name__}). If it is a state dict, name "
                "the network and give this file with --weights."
            ) from error


def _exported(program: Any, size: int) -> onnx.ModelProto:
    """The bare network as ONNX."""
    import onnx
    import torch

    from build_engines.onnx_graph import OPSET

    if isinstance(program, torch.export.ExportedProgram):
        exported = torch.onnx.export(program, dynamo=True, opset_version=OPSET, external_data=False, verbose=False)
        assert exported is not None
        model: onnx.ModelProto = exported.model_proto
        return model
    stream = io.BytesIO()
    pictures = torch.zeros(2, 3, size, size)
    names = {"input_names": ["image"], "output_names": ["answer"]}
    free = {"image": {0: "N"}, "answer": {0: "N"}}
    torch.onnx.export(
        program, (pictures,), stream, dynamo=False, opset_version=_SCRIPT_OPSET, dynamic_axes=free, **names
    )
    return onnx.load_from_string(stream.getvalue())


def _original(
    network: Any, name: str, normalisation: Normalisation, batch: int
) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]:
    """The program in torch, for pixels that are normalised here."""
    import torch

    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in (normalisation.mean, normalisation.std))
    weight = next(iter(network.parameters()), mean)

    def run(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        try:
            with torch.inference_mode():
                images = (torch.tensor(pixels).permute(0, 3, 1, 2) - mean) / std
                parts = images.contiguous().split(batch)
                answers = torch.cat([network(part.to(weight.device)) for part in parts])
        except Exception as error:  # networks assert, index and multiply
            raise SourceError(f"{name} does not run: {error}") from error
        result: npt.NDArray[np.float32] = answers.float().cpu().numpy()
        return result

    return run
