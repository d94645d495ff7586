from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from build_engines.serving import openvino_engine
from build_engines.serving.model import TritonPythonModel, UnfitError, check_numpy, load_engine, parse_labels

Pictures = npt.NDArray[np.uint8]


@pytest.fixture
def pictures() -> Pictures:
    """Seven pictures of noise for the tiny model."""
    return np.random.default_rng(1).integers(0, 256, (7, 14, 14, 3), dtype=np.uint8)


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
    shutil.copy(openvino_engine.__file__, tmp_path / "1" / "engine.py")
    (tmp_path / "labels.txt").write_text("cat\ndog\nfish\n")
    config = {
        "input": [{"name": "PREPROCESSED_IMAGE", "dims": ["14", "14", "3"]}],
        "output": [{"name": "CLASSIFICATION", "dims": ["3"], "label_filename": "labels.txt"}],
    }
    return {
        "model_name": "classifier",
        "model_repository": str(tmp_path),
        "model_version": "1",
        "model_config": json.dumps(config),
    }


@pytest.fixture
def model(arguments: dict[str, str], logged: list[str]) -> TritonPythonModel:
    """The started model."""
    model = TritonPythonModel()
    model.initialize(arguments)
    return model


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

    monkeypatch.setattr(model, "_run", fail)
    bad = Request(np.zeros((1, 9, 9, 3), np.uint8))
    errors = [response.error for response in model.execute([Request(pictures), bad, Request(pictures)])]
    assert [error.split(":")[0] for error in errors] == ["RuntimeError", "ValueError", "RuntimeError"]


def test_the_number_of_threads_can_be_set(
    arguments: dict[str, str], logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cores that the process may use, unless the configuration says otherwise."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    seen = []

    def spy(version: Path, threads: int, precision: str) -> Any:
        seen.append((threads, precision))
        return load_engine(version, threads, precision)

    monkeypatch.setattr("build_engines.serving.model.load_engine", spy)
    config = json.loads(arguments["model_config"])
    for value in (None, "0", "2"):
        config["parameters"] = {} if value is None else {"threads": {"string_value": value}}
        TritonPythonModel().initialize(arguments | {"model_config": json.dumps(config)})
    assert seen == [(3, "fp32"), (3, "fp32"), (2, "fp32")]


def test_labels_that_do_not_fit_stop_the_start(arguments: dict[str, str], logged: list[str]) -> None:
    """A model whose labels have a line too many is not served."""
    (Path(arguments["model_repository"]) / "labels.txt").write_text("cat\ndog\nfish\ncow\n")
    with pytest.raises(UnfitError, match="4 labels, and the model has 3 classes"):
        TritonPythonModel().initialize(arguments)


def test_a_width_that_is_not_promised_stops_the_start(arguments: dict[str, str], logged: list[str]) -> None:
    """A configuration for another number of classes is not served."""
    config = json.loads(arguments["model_config"])
    config["output"][0]["dims"] = ["1000"]
    with pytest.raises(UnfitError, match="and the model gives 3"):
        TritonPythonModel().initialize(arguments | {"model_config": json.dumps(config)})


@pytest.fixture
def certified(arguments: dict[str, str]) -> Path:
    """The folder of the version, now with labels, a recipe and a certificate of its own."""
    version = Path(arguments["model_repository"], "1")
    shutil.move(version.with_name("labels.txt"), version)
    (version / "preprocess.json").write_text("{}")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in version.iterdir()}
    (version / "certificate.json").write_text(json.dumps({"files": files}))
    arguments["model_config"] = arguments["model_config"].replace("labels.txt", "1/labels.txt")
    return version


@pytest.mark.parametrize("name", ["model.onnx", "engine.py", "labels.txt", "preprocess.json"])
def test_a_file_that_was_not_published_stops_the_start(
    arguments: dict[str, str], certified: Path, logged: list[str], name: str
) -> None:
    """Every file of a certified version must be the one that was judged: an edited or a missing one is named."""
    TritonPythonModel().initialize(arguments)
    (certified / name).write_bytes((certified / name).read_bytes().replace(b"cat", b"cow") + b"\n")
    with pytest.raises(UnfitError, match=rf"{name} is not the file that was published: build the model again"):
        TritonPythonModel().initialize(arguments)
    (certified / name).unlink()
    with pytest.raises(UnfitError, match=rf"{name} is not the file that was published"):
        TritonPythonModel().initialize(arguments)


def test_labels_of_another_place_stop_the_start(arguments: dict[str, str], certified: Path, logged: list[str]) -> None:
    """A certified version has labels of its own; others that a configuration names were judged with no engine."""
    shutil.copy(certified / "labels.txt", certified.with_name("labels.txt"))
    config = arguments["model_config"].replace("1/labels.txt", "labels.txt")
    with pytest.raises(UnfitError, match=r"names labels of another version than 1: promote it again"):
        TritonPythonModel().initialize(arguments | {"model_config": config})


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"files": 3}'])
def test_a_broken_certificate_stops_the_start(
    arguments: dict[str, str], certified: Path, logged: list[str], content: str
) -> None:
    """What is certified cannot be known then."""
    (certified / "certificate.json").write_text(content)
    with pytest.raises(UnfitError, match=r"certificate\.json cannot be read .*build the model again"):
        TritonPythonModel().initialize(arguments)


def test_features_need_no_labels(arguments: dict[str, str], logged: list[str], pictures: Pictures) -> None:
    """An output under another name, without labels, is answered under that name."""
    config = json.loads(arguments["model_config"])
    config["output"] = [{"name": "EMBEDDING", "dims": ["3"]}]
    model = TritonPythonModel()
    model.initialize(arguments | {"model_config": json.dumps(config)})
    (tensor,) = model.execute([Request(pictures)])[0].output_tensors
    assert (tensor.name, tensor.value.shape) == ("EMBEDDING", (7, 3))


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


def test_labels_are_lines_from_0() -> None:
    """Line k names class k; two classes may share a name, as crane the bird and crane the machine do."""
    assert parse_labels(b"crane\nmaillot\ncrane\n", 3) == ["crane", "maillot", "crane"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\nb\n", "2 labels, and the model has 3"),
        (b"a\nb\nc\nd\n", "4 labels, and the model has 3"),
        (b"a\nb\nc", "does not end with a newline"),
        (b"", "does not end with a newline"),
        (b"a\r\nb\r\nc\r\n", "Windows line ends"),
        (b"a\n \nc\n", "empty line, number 2"),
        (b"a\nb\n\xff\n", "not UTF-8"),
        (b"\xef\xbb\xbfa\nb\nc\n", "byte order mark"),
        (b"a\nb\0b\nc\n", "zero byte"),
    ],
)
def test_other_labels_are_refused(content: bytes, words: str) -> None:
    """A wrong count, Windows line ends, a cut or an empty line, other encodings: refused, with what is wrong."""
    with pytest.raises(UnfitError, match=words):
        parse_labels(content, 3)
