from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from build_engines.serving.onnx_classifier import (
    OnnxClassifier,
    TritonPythonModel,
    UnfitError,
    check_numpy,
    check_preprocessing,
    read_labels,
)

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


@dataclass(frozen=True)
class Request:
    """A request as Triton's stub hands it over."""

    images: Any


@dataclass(frozen=True)
class Response:
    """A response as Triton's stub takes it."""

    output_tensors: list[Any]
    error: Any = None

    def rows(self) -> npt.NDArray[np.float32]:
        """The probabilities of a response without an error."""
        assert self.error is None
        (tensor,) = self.output_tensors
        assert tensor.name == "CLASSIFICATION"
        rows: npt.NDArray[np.float32] = tensor.value
        return rows


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a stand-in for the module that exists only inside Triton in its place; gives what is logged."""
    messages: list[str] = []
    module = ModuleType("triton_python_backend_utils")
    stand_ins = {
        "Tensor": lambda name, value: SimpleNamespace(name=name, value=value),
        "InferenceResponse": Response,
        "TritonError": lambda message: message,
        "Logger": SimpleNamespace(log_error=messages.append),
        "get_input_tensor_by_name": lambda request, _: SimpleNamespace(as_numpy=lambda: request.images),
    }
    for name, value in stand_ins.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return messages


@pytest.fixture
def arguments(tiny: bytes, tmp_path: Path) -> dict[str, str]:
    """What Triton tells a model when it starts it, for an entry with the tiny model."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(tiny)
    (tmp_path / "labels.txt").write_text("cat\ndog\nfish\n")
    config = {"input": [{"name": "PREPROCESSED_IMAGE", "dims": ["14", "14", "3"]}]}
    return {"model_repository": str(tmp_path), "model_version": "1", "model_config": json.dumps(config)}


@pytest.fixture
def model(arguments: dict[str, str], logged: list[str]) -> TritonPythonModel:
    """The started model."""
    model = TritonPythonModel()
    model.initialize(arguments)
    return model


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_are_those_of_onnxruntime(tiny_file: Path, pictures: Pictures, threads: int) -> None:
    """Another runtime gives the same probabilities, whatever the number of threads, in the order of the images."""
    session = onnxruntime.InferenceSession(tiny_file, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"PREPROCESSED_IMAGE": pictures})[0]
    np.testing.assert_allclose(OnnxClassifier(tiny_file, threads)(pictures), expected, atol=1e-5)


def test_the_default_model_answers_the_same_in_any_batch(lite0: bytes, tmp_path: Path) -> None:
    """A picture alone, in a pair, in a batch of any size: the same probabilities within 1e-3, in truth 1e-6."""
    (tmp_path / "model.onnx").write_bytes(lite0)
    classify = OnnxClassifier(tmp_path / "model.onnx", threads=2)
    pictures = np.random.default_rng(2).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    together = classify(pictures)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-3)
    for size in (1, 2, 3, 4):
        np.testing.assert_allclose(classify(pictures[-size:]), together[-size:], atol=1e-6)


def test_no_images_have_no_answers(tiny_file: Path, pictures: Pictures) -> None:
    """An empty batch is answered with an empty one."""
    assert OnnxClassifier(tiny_file, threads=2)(pictures[:0]).shape == (0, 3)


def test_instances_take_turns_on_the_cores(tiny_file: Path, pictures: Pictures) -> None:
    """While another instance has the cores, a batch waits; it goes on when they are given back."""
    classify = OnnxClassifier(tiny_file, threads=2)
    with open("/proc/self/exe", "rb") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        answer = pool.submit(classify, pictures)
        with pytest.raises(FutureTimeoutError):
            answer.result(0.2)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert len(answer.result(20)) == len(pictures)


def test_a_failed_batch_does_no_harm_to_the_next(tiny_file: Path, pictures: Pictures) -> None:
    """After images that the network cannot take, the next ones are answered as before."""
    classify = OnnxClassifier(tiny_file, threads=2)
    before = classify(pictures)
    with pytest.raises(RuntimeError):
        classify(np.zeros((3, 9, 9, 3), np.uint8))
    np.testing.assert_array_equal(classify(pictures), before)


def test_one_response_for_each_request_in_order(model: TritonPythonModel, pictures: Pictures) -> None:
    """Requests that Triton merged get their own rows back, each with as many as it has images."""
    parts = [pictures[:1], pictures[1:4], pictures[4:4], pictures[4:]]
    together = model.execute([Request(pictures)])[0].rows()
    responses = model.execute([Request(part) for part in parts])
    assert [len(response.rows()) for response in responses] == [1, 3, 0, 3]
    np.testing.assert_allclose(np.concatenate([response.rows() for response in responses]), together, atol=1e-6)


def test_a_bad_request_fails_alone(model: TritonPythonModel, pictures: Pictures, logged: list[str]) -> None:
    """A request with the wrong pixels gets an error and a line in the log; its neighbours get their answers."""
    bad = Request(np.zeros((1, 9, 9, 3), np.uint8))
    alone = model.execute([Request(pictures)])[0].rows()
    first, failed, last = model.execute([Request(pictures), bad, Request(pictures)])
    np.testing.assert_array_equal(first.rows(), alone)
    np.testing.assert_array_equal(last.rows(), alone)
    assert "uint8 (1, 9, 9, 3)" in failed.error
    assert logged == [f"classifier: {failed.error}"]
    assert "uint8" in model.execute([Request(pictures.astype(np.float32))])[0].error


def test_a_failed_inference_is_an_error_of_every_request(
    model: TritonPythonModel, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the runtime fails, nobody gets made-up numbers: each request gets the error."""

    def fail(_: Pictures) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "_classify", fail)
    bad = Request(np.zeros((1, 9, 9, 3), np.uint8))
    errors = [response.error for response in model.execute([Request(pictures), bad, Request(pictures)])]
    assert [error.split(":")[0] for error in errors] == ["RuntimeError", "ValueError", "RuntimeError"]


def test_the_number_of_threads_can_be_set(
    arguments: dict[str, str], logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cores that the process may use, unless the configuration says otherwise."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    seen = []

    class Spy(OnnxClassifier):
        def __init__(self, path: Path, threads: int) -> None:
            seen.append(threads)
            super().__init__(path, threads)

    monkeypatch.setattr("build_engines.serving.onnx_classifier.OnnxClassifier", Spy)
    config = json.loads(arguments["model_config"])
    for value in (None, "0", "2"):
        config["parameters"] = {} if value is None else {"threads": {"string_value": value}}
        TritonPythonModel().initialize(arguments | {"model_config": json.dumps(config)})
    assert seen == [3, 3, 2]


def test_labels_that_do_not_fit_stop_the_start(arguments: dict[str, str], logged: list[str]) -> None:
    """A model whose labels have a line too many is not served."""
    (Path(arguments["model_repository"]) / "labels.txt").write_text("cat\ndog\nfish\ncow\n")
    with pytest.raises(UnfitError, match="4 labels, and the model has 3 classes"):
        TritonPythonModel().initialize(arguments)


def test_numpy_2_stops_the_start(arguments: dict[str, str], logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With numpy 2 this Triton would hand over white images without a word: the model refuses to start."""
    monkeypatch.setattr(np, "__version__", "2.4.0")
    with pytest.raises(UnfitError, match=r"numpy 2\.4\.0 is installed.*pip install 'numpy<2'"):
        TritonPythonModel().initialize(arguments)


@pytest.mark.parametrize(("version", "fits"), [("1.26.4", True), ("2.0.0", False), ("10.1", False)])
def test_numpy_is_told_apart_by_its_first_number(version: str, fits: bool) -> None:
    """Version 1 passes; 2 and whatever follows do not."""
    if fits:
        check_numpy(version)
    else:
        with pytest.raises(UnfitError):
            check_numpy(version)


def test_labels_are_lines_from_0(tmp_path: Path) -> None:
    """Line k names class k; two classes may share a name, as crane the bird and crane the machine do."""
    path = tmp_path / "labels.txt"
    path.write_text("crane\nmaillot\ncrane\n")
    assert read_labels(path, 3) == ["crane", "maillot", "crane"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\nb\n", "2 labels, and the model has 3"),
        (b"a\nb\nc\nd\n", "4 labels, and the model has 3"),
        (b"a\nb\nc", "does not end with a newline"),
        (b"", "does not end with a newline"),
        (b"a\r\nb\r\nc\r\n", "Windows line ends"),
        (b"a\n \nc\n", "empty line, number 2"),
        (b"a\nb\n\xff\n", "cannot be read"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """A wrong count, Windows line ends, a cut or an empty line, other encodings: refused, with what is wrong."""
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    with pytest.raises(UnfitError, match=words):
        read_labels(path, 3)


def test_missing_labels_are_refused(tmp_path: Path) -> None:
    """Without labels there is nothing to serve."""
    with pytest.raises(UnfitError, match="cannot be read"):
        read_labels(tmp_path / "labels.txt", 3)


def test_another_preprocessing_is_refused(tmp_path: Path) -> None:
    """A model is served only beside the preprocess.json that it was built for."""
    preprocess, certificate = tmp_path / "preprocess.json", tmp_path / "certificate.json"
    preprocess.write_text("{}")
    check_preprocessing(tmp_path)
    sha256 = hashlib.sha256(b"{}").hexdigest()
    certificate.write_text(json.dumps({"command": "python -m build_engines x", "preprocess": {"sha256": sha256}}))
    check_preprocessing(tmp_path)
    preprocess.write_text('{"size": 128}')
    with pytest.raises(UnfitError, match=r"not the one that the model was built for.*\(python -m build_engines x\)"):
        check_preprocessing(tmp_path)
