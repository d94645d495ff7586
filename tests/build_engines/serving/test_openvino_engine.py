from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import openvino
import pytest

from build_engines.serving.openvino_engine import Engine

Pictures = npt.NDArray[np.uint8]


@pytest.fixture
def pictures() -> Pictures:
    """Seven pictures of noise for the tiny model."""
    return np.random.default_rng(1).integers(0, 256, (7, 14, 14, 3), dtype=np.uint8)


@pytest.fixture
def tiny_file(tiny: bytes, tmp_path: Path) -> Path:
    """The tiny model as a file."""
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny)
    return path


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_are_those_of_onnxruntime(tiny_file: Path, pictures: Pictures, threads: int) -> None:
    """Another runtime gives the same probabilities, whatever the number of threads, in the order of the images."""
    session = onnxruntime.InferenceSession(tiny_file, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"PREPROCESSED_IMAGE": pictures})[0]
    np.testing.assert_allclose(Engine(tiny_file, threads, "fp32")(pictures), expected, atol=1e-5)


def test_the_default_model_answers_the_same_in_any_batch(lite0: bytes, tmp_path: Path) -> None:
    """A picture alone, in a pair, in a batch of any size: the same probabilities within 1e-3, in truth 1e-6."""
    (tmp_path / "model.onnx").write_bytes(lite0)
    classify = Engine(tmp_path / "model.onnx", 2, "fp32")
    pictures = np.random.default_rng(2).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    together = classify(pictures)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-3)
    for size in (1, 2, 3, 4):
        np.testing.assert_allclose(classify(pictures[-size:]), together[-size:], atol=1e-6)


def test_no_images_have_no_answers(tiny_file: Path, pictures: Pictures) -> None:
    """An empty batch is answered with an empty one."""
    assert Engine(tiny_file, 2, "fp32")(pictures[:0]).shape == (0, 3)


def test_instances_take_turns_on_the_cores(tiny_file: Path, pictures: Pictures) -> None:
    """While another instance has the cores, a batch waits; it goes on when they are given back."""
    classify = Engine(tiny_file, 2, "fp32")
    with open("/proc/self/exe", "rb") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        answer = pool.submit(classify, pictures)
        with pytest.raises(FutureTimeoutError):
            answer.result(0.2)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert len(answer.result(20)) == len(pictures)


def test_a_failed_batch_does_no_harm_to_the_next(tiny_file: Path, pictures: Pictures) -> None:
    """After images that the network cannot take, the next ones are answered as before."""
    classify = Engine(tiny_file, 2, "fp32")
    before = classify(pictures)
    with pytest.raises(RuntimeError):
        classify(np.zeros((3, 9, 9, 3), np.uint8))
    np.testing.assert_array_equal(classify(pictures), before)


def test_bf16_is_refused_where_the_processor_lacks_it(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that was built elsewhere does not fall back to FP32 in silence."""
    if "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert set(Engine(tiny_file, 1, "bf16").layers()) <= {"bf16", "fp32"}
    else:
        with pytest.raises(RuntimeError, match="no bfloat16"):
            Engine(tiny_file, 1, "bf16")
