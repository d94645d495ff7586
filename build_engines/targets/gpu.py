"""One NVIDIA GPU: what it is, and memory and a stream on it.

Through `cuda-bindings`, which a TensorRT machine needs nothing else for: 8 MB with the CUDA runtime inside, where
torch would be gigabytes, and the device that it names is the one that CUDA_VISIBLE_DEVICES left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from build_engines.errors import TargetError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CONTAINER = "build in a TensorRT container on a machine with a GPU (build_engines/gpu_check.sh shows how)"


@dataclass(frozen=True)
class Gpu:
    """The first GPU that this process may use."""

    name: str
    capability: str
    """The compute capability, such as "9.0"."""
    free: int
    """Memory that nobody uses now, in bytes."""


def find_gpu() -> Gpu:
    """The GPU, asked of the driver; `TargetError` says what is missing."""
    cudart = _runtime()
    try:
        properties = _value(cudart.cudaGetDeviceProperties(0), "read the GPU's name")
        free, _ = _values(cudart.cudaMemGetInfo(), "ask for free memory")
    except TargetError as error:
        raise TargetError(f"No usable NVIDIA GPU is here ({error}): {CONTAINER}.") from error
    name = properties.name
    return Gpu(
        name=name.decode().rstrip("\0") if isinstance(name, bytes) else str(name),
        capability=f"{properties.major}.{properties.minor}",
        free=int(free),
    )


class Stream:
    """A CUDA stream, and memory that is given back with it. Raises `TargetError` with CUDA's own words."""

    def __init__(self) -> None:
        self._cudart = _runtime()
        self._addresses: list[int] = []
        self._handle = _value(self._cudart.cudaStreamCreate(), "create a stream")

    @property
    def handle(self) -> int:
        """As TensorRT takes it."""
        return int(self._handle)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes on the GPU."""
        address = int(_value(self._cudart.cudaMalloc(size), f"allocate {size / 1e6:.0f} MB on the GPU"))
        self._addresses.append(address)
        return address

    def upload(self, array: npt.NDArray[np.uint8], address: int) -> None:
        """Copies an array, which must be contiguous, to the GPU."""
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        copied = self._cudart.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._handle)
        _values(copied, "copy to the GPU")

    def download(self, address: int, array: npt.NDArray[np.float32]) -> None:
        """Fills an array, which must be contiguous, from the GPU, and waits for all that was asked before."""
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        copied = self._cudart.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._handle)
        _values(copied, "copy from the GPU")
        _values(self._cudart.cudaStreamSynchronize(self._handle), "run on the GPU")

    def close(self) -> None:
        """Gives memory and stream back."""
        while self._addresses:
            self._cudart.cudaFree(self._addresses.pop())
        self._cudart.cudaStreamDestroy(self._handle)


@contextmanager
def needing_tensorrt() -> Iterator[None]:
    """Imports inside need the project's extra "tensorrt"; `TargetError` names what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise TargetError(
            f"The package {error.name} is not installed: {CONTAINER}, or pip install 'tidegate[tensorrt]'."
        ) from error
    except ImportError as error:  # the bindings are there and the library is not
        raise TargetError(f"TensorRT cannot be loaded ({error}): {CONTAINER}.") from error


def _runtime() -> Any:
    with needing_tensorrt():
        from cuda.bindings import runtime
    return runtime


def _values(result: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """What a CUDA function gave, without the error code in front, which is looked at."""
    code, *values = result
    if int(code):
        raise TargetError(f"CUDA could not {doing}: {getattr(code, 'name', code)}")
    return tuple(values)


def _value(result: tuple[Any, ...], doing: str) -> Any:
    return _values(result, doing)[0]
