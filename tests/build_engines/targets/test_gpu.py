from __future__ import annotations

import numpy as np
import pytest

from build_engines.errors import TargetError
from build_engines.targets.gpu import Gpu, Stream, find_gpu
from tests.build_engines.targets.fakes import Error, FakeCuda, install


def test_the_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, compute capability and free memory of the first device."""
    install(monkeypatch, FakeCuda())
    assert find_gpu() == Gpu("NVIDIA H200", "9.0", 8 << 30)


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the message says where to build, and what to install."""
    install(monkeypatch, None)
    with pytest.raises(TargetError, match=r"cuda.bindings is not installed: .*container.*tidegate\[tensorrt\]"):
        find_gpu()


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver the message says so, in CUDA's words, and where to build."""
    install(monkeypatch, FakeCuda(Error.cudaErrorInsufficientDriver))
    with pytest.raises(TargetError, match=r"No usable NVIDIA GPU .*cudaErrorInsufficientDriver.*container"):
        find_gpu()


def test_memory_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is uploaded can be downloaded, and closing gives all memory back."""
    cuda = FakeCuda()
    install(monkeypatch, cuda)
    stream = Stream()
    address = stream.allocate(16)
    stream.upload(np.arange(16, dtype=np.uint8), address)
    answers = np.empty(4, np.float32)
    stream.download(address, answers)
    assert answers.tobytes() == bytes(range(16))
    stream.close()
    assert not cuda.memory
