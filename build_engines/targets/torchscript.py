"""TorchScript for Triton's PyTorch backend: networks that exist as torch modules, in FP32.

TorchScript is deprecated in torch since 2.11, and is still what the backend batches. Its successor there,
`platform: "torch_aoti"` for `model.pt2` files of AOTInductor (beta since Triton 26.03), takes no batch above 1
(README of pytorch_backend, 26.05): it cannot serve this gateway yet. When it can, this module is where it goes.

FP32 only. Half precision would mean autocast in the traced graph, which casts every weight in every request and
cannot be judged on the machines that most builds run on: TensorRT is the target for that. On a GPU cuDNN may use
TF32 for FP32 convolutions, here as in Triton, so the gate judges what is served.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from build_engines.configs import Serving
from build_engines.errors import TargetError
from build_engines.targets import Calibration, Engine

if TYPE_CHECKING:
    from build_engines.sources import Network
    from build_engines.stages import Stages
    from build_engines.targets import Answers, Images

SERVING = Serving(
    platform='platform: "pytorch_libtorch"',
    variant="",
    max_batch=64,
    instances=2,
    delay_us=1000,
    why={
        "head": "The network on a GPU as TorchScript, for Triton's PyTorch backend: UINT8 pixels in.\n"
        "The backend finds outputs by the number behind two underscores, and the only input by its place.",
        "instance_group": "Two, so that one copies while the other computes; they share the weights.",
        "model_warmup": "The first inferences choose kernels; Triton does these before it says that it is ready.",
    },
    warmup=True,
    parameters={
        # The backend's default already; said, so that no release changes it.
        "INFERENCE_MODE": "true",
        "ENABLE_WEIGHT_SHARING": "true",
        # The profiling executor may compile again when shapes change, and batches do.
        "ENABLE_JIT_PROFILING": "false",
    },
    output_suffix="__0",
)

# A trace that took a branch by the batch, or kept a random number, differs from its module by far more.
_TOLERANCE = 1e-4

_TRACED_BATCH = 2


@dataclass(frozen=True)
class TorchScript:
    """The target. Traces on the GPU where torch has one, else on the CPU; the file runs on either."""

    @property
    def name(self) -> str:
        return "torchscript"

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("fp32",)

    @property
    def variant(self) -> str:
        return SERVING.variant

    @property
    def calibrates_on(self) -> str:
        return "ranges"  # and never asks for any

    def identity(self, precision: str) -> Mapping[str, Any]:
        """The version of torch: an older backend may not read a newer file."""
        if precision not in self.precisions:
            raise TargetError(f"TorchScript is built in fp32 only, not in {precision}: use the target tensorrt for it.")
        try:
            return {"name": self.name, "torch": metadata.version("torch")}
        except metadata.PackageNotFoundError as error:
            raise TargetError("The package torch is not installed: pip install 'tidegate[torch]'.") from error

    def build(self, network: Network, precision: str, calibration: Calibration, stages: Stages) -> Engine:
        """Traces the network's module and checks the trace with other batches; a calibration is not used."""
        self.identity(precision)
        if network.module is None:
            raise TargetError("This source has no torch module to trace: use another target, such as onnxruntime.")
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        content = trace(network.module, _size(network.graph), device)
        return Engine(
            files={"model.pt": content},
            serving=SERVING,
            layers=_layers(content),
            device=torch.cuda.get_device_name() if device == "cuda" else "CPU",
            run=_Runner(content, device),
        )


def trace(module: Any, size: int, device: str) -> bytes:
    """A torch module as the content of `model.pt`, for any batch UINT8 [n, size, size, 3].

    Raises `TargetError` when it cannot be traced, when the trace answers otherwise than the module for another
    batch or other pictures, or when it holds the name of a device: Triton places each instance on its own.
    """
    import torch

    module = module.to(device).eval()
    random = torch.Generator().manual_seed(0)
    one, few, more = (
        torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, generator=random).to(device)
        for batch in (1, _TRACED_BATCH, 5)
    )
    try:
        with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # what it guesses is measured below
            traced = torch.jit.trace(module, (few,), check_trace=False)
            difference = max(float((traced(x) - module(x)).abs().max()) for x in (one, few, more))
    except Exception as error:  # tracing runs the module's own code, which may raise anything
        raise TargetError(f"The module cannot be traced ({error}).") from error
    if not difference <= _TOLERANCE:
        raise TargetError(
            f"The traced module answers otherwise than the module itself (by {difference:.2g}): "
            "it looks at values or at the batch, which a trace does not follow. Use another target."
        )
    devices = _devices(traced)
    if devices:
        raise TargetError(
            f"The module makes tensors on a device of its own choice ({', '.join(sorted(devices))}), not "
            "that of Triton's instance. Use another target, or register them as buffers."
        )
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(traced.to("cpu"), content)
    return content.getvalue()


class _Runner:
    """A `model.pt` as Triton loads it: UINT8 [n, size, size, 3] → FP32 [n, width]."""

    def __init__(self, content: bytes, device: str) -> None:
        self._module, self._device = _load(content, device), device

    def __call__(self, images: Images) -> Answers:
        import numpy as np
        import torch

        with torch.inference_mode():
            chunks = [
                self._module(
                    torch.from_numpy(np.ascontiguousarray(images[at : at + SERVING.max_batch])).to(self._device)
                )
                for at in range(0, len(images), SERVING.max_batch)
            ]
            answers: Answers = torch.cat(chunks).cpu().numpy()
        return answers


def _load(content: bytes, device: str) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.load(io.BytesIO(content), map_location=device).eval()


def _layers(content: bytes) -> dict[str, int]:
    """Convolutions and matrix products of the saved file by the type of its weights."""
    import torch

    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    counts: dict[str, int] = {}
    for key, value in _load(content, "cpu").state_dict().items():
        if key.endswith("weight") and value.dim() >= 2:
            name = names.get(value.dtype, str(value.dtype))
            counts[name] = counts.get(name, 0) + 1
    return counts


def _devices(traced: Any) -> set[str]:
    """Devices that are written into a traced graph."""
    found = set()
    graph = traced.inlined_graph  # its nodes live as long as this name
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "DeviceObjType":
            found.add(str(node.output().toIValue()))
    return found


def _size(graph: bytes) -> int:
    import onnx

    return int(onnx.load_model_from_string(graph).graph.input[0].type.tensor_type.shape.dim[1].dim_value)
