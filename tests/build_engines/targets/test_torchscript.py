from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from build_engines.configs import Entry, network_config
from build_engines.errors import TargetError
from build_engines.stages import Stages
from build_engines.targets import Calibration
from build_engines.targets.torchscript import SERVING, TorchScript
from tests.build_engines.targets.fakes import network
from tests.model_repository.test_configs import parse


def test_only_fp32() -> None:
    """Other precisions are refused, and the message names the target that has them."""
    with pytest.raises(TargetError, match=r"fp32 only, not in fp16: .* tensorrt"):
        TorchScript().identity("fp16")


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the message says what to install."""

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(TargetError, match=r"pip install 'tidegate\[torch\]'"):
        TorchScript().identity("fp32")


def test_no_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A source that is only a graph cannot be traced."""
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    with pytest.raises(TargetError, match=r"no torch module .*onnxruntime"):
        TorchScript().build(network(), "fp32", Calibration(), Stages(tmp_path))


def test_the_configuration(tmp_path: Path) -> None:
    """Triton's own definition takes it: its PyTorch backend, batches, and an output that is found by its number."""
    path = tmp_path / "config.pbtxt"
    path.write_text(network_config(Entry(tmp_path, "resnet50"), SERVING, size=224, width=1000, version="1"))
    config = parse(path)
    assert config.platform == "pytorch_libtorch"
    assert config.max_batch_size == 64
    assert [output.name for output in config.output] == ["CLASSIFICATION__0"]
    assert config.parameters["INFERENCE_MODE"].string_value == "true"
