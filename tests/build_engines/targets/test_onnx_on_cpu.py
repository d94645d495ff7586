from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build_engines.calibration import Ranges, measure
from build_engines.errors import GraphError, TargetError
from build_engines.sources import Network
from build_engines.stages import Stages
from build_engines.targets import Calibration
from build_engines.targets.onnx_on_cpu import ONNXRUNTIME, OPENVINO, OnnxOnCpu
from build_engines.targets.registry import TARGETS, find_target
from tests.build_engines.conftest import TINY_NORMALISATION, TinySource, Weights

PICTURES = np.random.default_rng(3).integers(0, 256, (5, 14, 14, 3), dtype=np.uint8)


@pytest.fixture
def network(tiny_weights: Weights) -> Network:
    """The tiny model."""
    return TinySource(tiny_weights).load(TINY_NORMALISATION)


@pytest.mark.parametrize("target", [OPENVINO, ONNXRUNTIME], ids=lambda target: target.name)
def test_an_engine_answers_as_its_source(target: OnnxOnCpu, network: Network, tmp_path: Path) -> None:
    """FP32 on the CPU gives the reference's answers, for any number of images, and says that it is FP32."""
    engine = target.build(network, "fp32", Calibration(), Stages(tmp_path))
    assert set(engine.files) == {"model.onnx", "model.py", "engine.py"}
    assert engine.layers == {"fp32": 11}
    assert engine.serving.file == "configs/cpu.pbtxt"
    for count in range(6):
        np.testing.assert_allclose(engine.run(PICTURES[:count]), network.reference(PICTURES)[:count], atol=1e-5)


@pytest.mark.parametrize("target", [OPENVINO, ONNXRUNTIME], ids=lambda target: target.name)
def test_int8_really_runs(target: OnnxOnCpu, network: Network, tmp_path: Path) -> None:
    """With ranges, the runtime itself reports the layers as INT8, and answers differ a little from FP32's."""
    ranges = Ranges(measure(network.graph, PICTURES), 5, None, "", "")
    engine = target.build(network, "int8", Calibration(ranges=ranges), Stages(tmp_path))
    assert engine.layers.get("int8", 0) >= 10
    difference = np.abs(engine.run(PICTURES) - network.reference(PICTURES)).max()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("target", [OPENVINO, ONNXRUNTIME], ids=lambda target: target.name)
def test_a_graph_that_does_not_run_is_an_error(target: OnnxOnCpu, network: Network, tmp_path: Path) -> None:
    """What the runtime says about a broken graph becomes one sentence."""
    broken = Network("classify", network.graph[:-50], network.reference, 3)
    with pytest.raises(GraphError, match=f"does not run in {target.name}"):
        target.build(broken, "fp32", Calibration(), Stages(tmp_path))


def test_a_missing_runtime_is_named() -> None:
    """The error says what to install."""
    with pytest.raises(TargetError, match=r"no-such-package is not installed: pip install 'tidegate\[local\]'"):
        OnnxOnCpu("openvino", "no-such-package", ("fp32",)).identity("fp32")


def test_targets_are_found_by_name() -> None:
    """Every name on the command line leads to a target, and another one lists them."""
    assert {"openvino", "onnxruntime", "tensorrt", "torchscript"} == set(TARGETS)
    assert [find_target(name).name for name in TARGETS] == list(TARGETS)
    with pytest.raises(TargetError, match="one of openvino, onnxruntime"):
        find_target("tpu")
