"""A CUDA runtime in the memory of this process, and small things that every test of a GPU target needs."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from build_engines.sources import INPUT, OUTPUTS, Network

SIZE, WIDTH = 4, 3


Error = IntEnum("Error", {"cudaSuccess": 0, "cudaErrorInsufficientDriver": 35})
Kind = IntEnum("Kind", {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2})


class FakeCuda:
    """`cuda.bindings.runtime`: addresses are addresses here. With an `error`, everything fails."""

    cudaMemcpyKind = Kind  # noqa: N815  # CUDA's own name

    def __init__(self, error: Error = Error.cudaSuccess) -> None:
        self.error = error
        self.memory: dict[int, Any] = {}

    def cudaGetDeviceProperties(self, device: int) -> tuple[Any, ...]:  # noqa: N802
        return self.error, SimpleNamespace(name=b"NVIDIA H200\0\0", major=9, minor=0)

    def cudaMemGetInfo(self) -> tuple[Any, ...]:  # noqa: N802
        return self.error, 8 << 30, 9 << 30

    def cudaStreamCreate(self) -> tuple[Any, ...]:  # noqa: N802
        return self.error, 7

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:  # noqa: N802
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = buffer
        return self.error, ctypes.addressof(buffer)

    def cudaMemcpyAsync(self, to: int, source: int, size: int, kind: Kind, stream: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memmove(to, source, size)
        return (self.error,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return (self.error,)

    def cudaFree(self, address: int) -> tuple[Any, ...]:  # noqa: N802
        del self.memory[address]
        return (self.error,)

    def cudaStreamDestroy(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return (self.error,)


def install(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda | None, tensorrt: Any = None) -> None:
    """Puts them where imports find them; None is a package that is not installed."""
    bindings: Any = ModuleType("cuda.bindings")
    bindings.runtime = cuda
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings if cuda else None)
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)


def graph() -> bytes:
    """A network of the builder's form: UINT8 pixels, FP32 answers that are the mean of each channel."""
    nodes = [
        helper.make_node("Cast", [INPUT], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x"], [OUTPUTS["classify"]], axes=[1, 2], keepdims=0),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "means",
            [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["N", SIZE, SIZE, 3])],
            [helper.make_tensor_value_info(OUTPUTS["classify"], TensorProto.FLOAT, ["N", WIDTH])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def network(module: Any = None) -> Network:
    """The same as a source gives it."""
    return Network(
        task="classify",
        graph=graph(),
        reference=lambda pixels: pixels.mean(axis=(1, 2)).astype(np.float32),
        width=WIDTH,
        module=module,
    )
