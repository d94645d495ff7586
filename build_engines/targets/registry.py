"""The targets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from build_engines.errors import TargetError
from build_engines.targets import Target


def _openvino() -> Target:
    from build_engines.targets.onnx_on_cpu import OPENVINO

    return OPENVINO


def _onnxruntime() -> Target:
    from build_engines.targets.onnx_on_cpu import ONNXRUNTIME

    return ONNXRUNTIME


def _tensorrt() -> Target:
    from build_engines.targets.tensorrt import TensorRT

    return TensorRT()


def _torchscript() -> Target:
    from build_engines.targets.torchscript import TorchScript

    return TorchScript()


_TARGETS: Mapping[str, Callable[[], Target]] = {
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "tensorrt": _tensorrt,
    "torchscript": _torchscript,
}
TARGETS = tuple(_TARGETS)


def find_target(name: str) -> Target:
    """The target; `TargetError` names those that there are."""
    if name not in _TARGETS:
        raise TargetError(f"There is no target {name}: it is one of {', '.join(TARGETS)}.")
    return _TARGETS[name]()
