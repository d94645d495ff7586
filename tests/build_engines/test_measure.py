from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build_engines.errors import GateError
from build_engines.measure import performance
from build_engines.stages import Stages
from build_engines.targets import Calibration, Engine
from build_engines.targets.onnx_on_cpu import OPENVINO
from tests.build_engines.conftest import TINY_NORMALISATION, TinySource, Weights


@pytest.fixture
def engine(tiny_weights: Weights, tmp_path: Path) -> Engine:
    """The tiny model on the CPU."""
    return OPENVINO.build(TinySource(tiny_weights).load(TINY_NORMALISATION), "fp32", Calibration(), Stages(tmp_path))


def test_speed_and_memory_are_measured(engine: Engine) -> None:
    """A row for each batch size that the engine takes; memory is that of a process with the engine alone."""
    big = np.ones(400_000_000, np.uint8)  # of ours, so that it would show
    found = performance(engine, "fp32", 14)
    assert [row["batch"] for row in found["speed"]] == [1, 8, 32]
    assert all(row["images_per_s"] > 0 and row["ms"] > 0 for row in found["speed"])
    assert 20 < found["memory_mib"] < 380
    del big


def test_an_engine_without_a_program_is_measured_here(engine: Engine) -> None:
    """A plan for a GPU runs in this process, in the batch sizes that it takes, and memory is not made up."""
    plan = replace(engine, files={"model.plan": b""}, serving=replace(engine.serving, max_batch=8))
    found = performance(plan, "fp32", 14)
    assert [row["batch"] for row in found["speed"]] == [1, 8]
    assert "memory_mib" not in found


def test_an_engine_that_does_not_run_is_refused(engine: Engine) -> None:
    """What cannot be measured is not published."""
    broken = replace(engine, files={**engine.files, "model.onnx": b"nothing"})
    with pytest.raises(GateError, match="cannot be measured"):
        performance(broken, "fp32", 14)
