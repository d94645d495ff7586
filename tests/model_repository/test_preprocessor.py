"""The preprocessor's handling of requests, driven without Triton; tests/triton drives it in the real one."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.model_repository.picture_files import CORRUPT, EMPTY, OK, PREPROCESSOR, TOO_LARGE, UNSUPPORTED, load_by_path
from tests.model_repository.picture_files import flat as picture_of
from tests.pictures import encode

REPOSITORY = PREPROCESSOR.parents[1]


@dataclass
class Tensor:
    """The few lines of Triton's Tensor that a model uses."""

    name: str
    array: npt.NDArray[Any]

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.array


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: str | None = None

    def tensor(self, name: str) -> npt.NDArray[Any]:
        (found,) = (t for t in self.output_tensors if t.name == name)
        return found.array


class Request(dict[str, Tensor]):
    """Input tensors by name, and the way to answer later."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__({tensor.name: tensor for tensor in tensors})
        self.sent: Queue[InferenceResponse] = Queue()
        self.microseconds = 0

    def timeout(self) -> int:
        return self.microseconds

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: InferenceResponse, flags: str) -> None:
        assert flags == "final"
        self.sent.put(response)


def execute(model: Any, *requests: Request) -> list[Any]:
    """The answers, those included that are sent later."""
    answers = model.execute(list(requests))
    return [sent.sent.get(timeout=60) if now is None else now for now, sent in zip(answers, requests, strict=True)]


@dataclass
class Logger:
    lines: list[str] = field(default_factory=list)

    def log_error(self, line: str) -> None:
        self.lines.append(line)

    log_warn = log_error


def stand_in() -> ModuleType:
    module = ModuleType("triton_python_backend_utils")
    found = {
        "Tensor": Tensor,
        "InferenceResponse": InferenceResponse,
        "TritonError": str,
        "Logger": Logger(),
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": "final",
    }
    vars(module).update(found, get_input_tensor_by_name=lambda request, name: request[name])
    return module


def parse(path: Path) -> Any:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def arguments(**parameters: str) -> dict[str, str]:
    """What Triton hands to initialize(), from the shipped config.pbtxt."""
    message = text_format.Parse(
        (REPOSITORY / "preprocessor" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    config = json_format.MessageToDict(message, preserving_proto_field_name=True)
    config["parameters"].update({key: {"string_value": value} for key, value in parameters.items()})
    return {
        "model_config": json.dumps(config),
        "model_repository": str(REPOSITORY / "preprocessor"),
        "model_version": "1",
        "model_name": "preprocessor",
    }


def with_recipe(repository: Path, content: bytes, sha256: str | None) -> dict[str, str]:
    """The same for a repository whose recipe is `content`, and whose configuration says `sha256` of it, or nothing."""
    (repository / "classifier").mkdir(exist_ok=True)
    (repository / "classifier" / "preprocess.json").write_bytes(content)
    found = {**arguments(), "model_repository": str(repository / "preprocessor")}
    config = json.loads(found["model_config"])
    config["parameters"].pop("preprocess_sha256", None)
    if sha256 is not None:
        config["parameters"]["preprocess_sha256"] = {"string_value": sha256}
    return {**found, "model_config": json.dumps(config)}


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module model.py with a stand-in for what Triton's stub provides."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    return load_by_path(PREPROCESSOR / "model.py", "preprocessor_under_test")


@pytest.fixture
def model(code: Any) -> Iterator[Any]:
    model = code.TritonPythonModel()
    model.initialize(arguments(threads="2", max_pixels="10000"))
    yield model
    model.finalize()


def request(*files: bytes, lengths: list[int] | None = None) -> Request:
    """Files padded with zeros to the longest of this request, and their true lengths unless others are given."""
    raw = np.zeros((len(files), max(map(len, files), default=0)), np.uint8)
    for row, file in zip(raw, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    true = np.array(lengths or [len(file) for file in files], np.int32).reshape(-1, 1)
    return Request(Tensor("RAW_IMAGE", raw), Tensor("IMAGE_LENGTH", true))


RED, BLUE = (encode(picture_of(colour), "PNG") for colour in ("red", "blue"))


def test_requests_are_answered_in_order_with_their_own_images(model: Any) -> None:
    """Three requests of different lengths in one execution: three answers, each as if alone."""
    big = encode(picture_of("lime", size=(64, 64)), "BMP")
    one, two, three = execute(model, request(RED), request(BLUE, big), request(RED, BLUE, RED))
    assert [r.tensor("PREPROCESSED_IMAGE").shape for r in (one, two, three)] == [(n, 224, 224, 3) for n in (1, 2, 3)]
    for response, colours in ((one, "R"), (two, "BG"), (three, "RBR")):
        pixels, statuses = response.tensor("PREPROCESSED_IMAGE"), response.tensor("IMAGE_STATUS")
        assert (pixels.dtype, statuses.dtype, statuses.tolist()) == (np.uint8, np.int32, [[OK]] * len(colours))
        for image, colour in zip(pixels, colours, strict=True):
            want = {"R": (255, 0, 0), "G": (0, 255, 0), "B": (0, 0, 255)}[colour]
            assert (image == want).all()


def test_a_bad_image_has_a_status_and_no_pixels(model: Any) -> None:
    """Every kind of trouble keeps its place; neighbours are not touched."""
    large = encode(picture_of("red", size=(101, 100)), "PNG")
    (response,) = execute(model, request(RED, b"", b"words", RED[:-2], large, BLUE))
    assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [OK, EMPTY, UNSUPPORTED, CORRUPT, TOO_LARGE, OK]
    assert response.tensor("PREPROCESSED_IMAGE").any(axis=(1, 2, 3)).tolist() == [True, *[False] * 4, True]


def test_a_cut_file_is_corrupt_beside_a_bigger_one(model: Any) -> None:
    """The padding that a bigger neighbour brings never reaches a decoder."""
    photo = encode(picture_of("red"), "JPEG")
    big = encode(picture_of("blue", size=(90, 90)), "BMP")
    (response,) = execute(model, request(photo[:-2], photo, big))
    assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [CORRUPT, OK, OK]


@pytest.mark.parametrize("length", [-1, len(RED) + 1, 2**31 - 1, -(2**31)])
def test_an_impossible_length_is_that_image_s_trouble(model: Any, length: int) -> None:
    """Negative lengths, and lengths beyond the row, are a status."""
    (response,) = execute(model, request(RED, RED, lengths=[length, len(RED)]))
    assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [CORRUPT, OK]


def test_tensors_that_do_not_fit_are_an_error_of_that_request(model: Any) -> None:
    """Fewer lengths than images, a missing axis: the next request is answered all the same."""
    short, flat = request(RED, BLUE), request(RED)
    short["IMAGE_LENGTH"].array = short["IMAGE_LENGTH"].array[:1]
    flat["RAW_IMAGE"].array = flat["RAW_IMAGE"].array[0]
    first, second, third = execute(model, short, flat, request(RED))
    assert "do not fit" in first.error
    assert "do not fit" in second.error
    assert third.error is None


def test_a_mistake_of_ours_costs_one_request(code: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no ImageError is logged and answered without details."""
    real, unlucky = code.imaging.preprocess, encode(picture_of("blue"), "JPEG")

    def preprocess(data: memoryview, *rest: Any, **options: Any) -> Any:
        if bytes(data) == unlucky:
            raise KeyError("a secret")
        return real(data, *rest, **options)

    monkeypatch.setattr(code.imaging, "preprocess", preprocess)
    bad, good = execute(model, request(RED, unlucky), request(RED))
    assert bad.error == "preprocessing failed"
    assert good.tensor("IMAGE_STATUS").tolist() == [[OK]]
    assert "a secret" in code.pb_utils.Logger.lines[0]


def test_a_picture_that_needs_too_much_is_that_image_s_trouble(code: Any) -> None:
    """Memory that a picture may not have is its own verdict; the model lives on."""
    model = code.TritonPythonModel()
    model.initialize(arguments(max_pixels="20000000", memory_mib="20"))
    large = encode(picture_of("red", size=(4000, 4000)), "PNG")
    for _ in range(2):
        (response,) = execute(model, request(RED, large, BLUE))
        assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [OK, TOO_LARGE, OK]
    model.finalize()


def test_a_picture_that_takes_too_long_is_corrupt(code: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is ended, a line in the log says so, and its neighbours are answered."""

    def preprocess(file: memoryview, *rest: Any) -> Any:
        if bytes(file) == BLUE:
            raise code.guard.Ended("SIGPROF")
        return real(file, *rest)

    real = model._guard.preprocess
    monkeypatch.setattr(model._guard, "preprocess", preprocess)
    (response,) = execute(model, request(RED, BLUE, RED))
    assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [OK, CORRUPT, OK]
    assert "ended by SIGPROF" in code.pb_utils.Logger.lines[0]


def test_a_costly_picture_holds_up_nobody(code: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own request is answered when it is done, however long that takes; the others at once."""
    done = threading.Event()
    real = model._guard.preprocess
    monkeypatch.setattr(model._guard, "preprocess", lambda *file: (done.wait(60), real(*file))[1])
    quick = encode(picture_of("lime"), "JPEG")
    slow = [request(quick, RED, BLUE), request(BLUE)]
    for _ in range(3):
        first, second, third, fourth = model.execute([slow[0], request(quick), slow[1], request(b"")])
        assert first is third is None
        assert second.tensor("IMAGE_STATUS").tolist() == [[OK]]
        assert fourth.tensor("IMAGE_STATUS").tolist() == [[EMPTY]]
        assert slow[0].sent.empty()
        assert slow[1].sent.empty()
    done.set()
    for _ in range(3):
        assert slow[0].sent.get(timeout=60).tensor("IMAGE_STATUS").tolist() == [[OK]] * 3
        assert slow[1].sent.get(timeout=60).tensor("PREPROCESSED_IMAGE")[0, 0, 0].tolist() == [0, 0, 255]


def test_large_pictures_are_decoded_too(code: Any) -> None:
    """Those of more pixels than are decoded freely, beside others, and none above the limit."""
    model = code.TritonPythonModel()
    model.initialize(arguments(max_pixels="20000000"))
    large, too_large = (encode(picture_of(1, "1", (4000, height)), "PNG") for height in (5000, 5001))
    (response,) = execute(model, request(large, RED, too_large, large, large))
    assert response.tensor("IMAGE_STATUS")[:, 0].tolist() == [OK, OK, TOO_LARGE, OK, OK]
    model.finalize()


def test_a_request_of_many_costly_pictures_waits_for_itself(
    code: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first picture of everybody comes before the second of anybody."""
    order: list[bytes] = []
    begun, go_on = threading.Event(), threading.Event()
    real = model._guard.preprocess

    def preprocess(file: memoryview, *rest: Any) -> Any:
        begun.set()
        go_on.wait(60)
        order.append(bytes(file))
        return real(file, *rest)

    monkeypatch.setattr(model._guard, "preprocess", preprocess)
    many, one = request(*[RED] * 20), request(BLUE)
    assert model.execute([many]) == [None]
    begun.wait(60)
    assert model.execute([one]) == [None]
    go_on.set()
    assert one.sent.get(timeout=60).tensor("IMAGE_STATUS").tolist() == [[OK]]
    assert many.sent.get(timeout=60).tensor("IMAGE_STATUS").tolist() == [[OK]] * 20
    assert order.index(BLUE) <= 4  # two threads have two pictures each, at most, before they look again


def test_nothing_is_done_for_a_caller_whose_time_has_passed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What still waits then is dropped, and the next request is not held up by it."""
    asked: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    real = model._guard.preprocess

    def preprocess(file: memoryview, *rest: Any) -> Any:
        asked.append(len(file))
        begun.set()
        go_on.wait(60)
        return real(file, *rest)

    monkeypatch.setattr(model._guard, "preprocess", preprocess)
    hasty = request(*[RED] * 20)
    hasty.microseconds = 50_000
    assert model.execute([hasty]) == [None]
    begun.wait(60)
    time.sleep(0.1)
    go_on.set()
    assert hasty.sent.get(timeout=60).error == "preprocessing failed"
    assert len(asked) <= 2  # what had begun
    (response,) = execute(model, request(RED))
    assert response.tensor("IMAGE_STATUS").tolist() == [[OK]]


def test_numpy_2_is_refused(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's stub would hand over 0xFF bytes without an error; the sentence says what to install."""
    monkeypatch.setattr(code.np, "__version__", "2.1.0")
    with pytest.raises(RuntimeError, match="install numpy<2"):
        code.TritonPythonModel().initialize(arguments())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"threads": "0"}, "threads must be a whole number above 0, not '0'"),
        ({"max_pixels": "many"}, "max_pixels must be a whole number above 0, not 'many'"),
        ({"cpu_seconds": "0.5"}, "cpu_seconds must be a whole number above 0, not '0.5'"),
        ({"memory_mib": ""}, "memory_mib must be a whole number above 0, not ''"),
        ({"preprocess": "nowhere/preprocess.json"}, "nowhere"),
    ],
)
def test_a_wrong_parameter_stops_the_start(code: Any, parameters: dict[str, str], words: str) -> None:
    """Triton shows the sentence as the reason why the model is not ready."""
    with pytest.raises((ValueError, OSError), match=words):
        code.TritonPythonModel().initialize(arguments(**parameters))


def test_a_recipe_of_another_size_than_promised_stops_the_start(code: Any, tmp_path: Path) -> None:
    """config.pbtxt and preprocess.json must agree on the size."""
    recipe = json.loads((REPOSITORY / "classifier" / "preprocess.json").read_text())
    content = json.dumps({**recipe, "size": 192}).encode()
    found = with_recipe(tmp_path, content, hashlib.sha256(content).hexdigest())
    config = json.loads(found["model_config"])
    del config["parameters"]["pixels_sha256"]  # which would be wrong, too
    with pytest.raises(ValueError, match=r"promises .* makes 192"):
        code.TritonPythonModel().initialize({**found, "model_config": json.dumps(config)})


def test_a_recipe_that_was_not_certified_stops_the_start(code: Any, tmp_path: Path) -> None:
    """One byte is enough, even one that changes no pixel; the sentence names the file and what to do."""
    content = (REPOSITORY / "classifier" / "preprocess.json").read_bytes()
    certified = hashlib.sha256(content).hexdigest()
    with pytest.raises(ValueError, match=r"classifier/preprocess\.json is not the one .*python -m build_engines"):
        code.TritonPythonModel().initialize(with_recipe(tmp_path, content + b"\n", certified))
    model = code.TritonPythonModel()
    model.initialize(with_recipe(tmp_path, content, certified))
    model.finalize()


def test_other_pixels_than_promised_stop_the_start(code: Any, tmp_path: Path) -> None:
    """Networks that share a preprocessor were certified with its pixels: mean and std may differ, nothing else."""
    recipe = json.loads((REPOSITORY / "classifier" / "preprocess.json").read_text())
    promised = code.imaging.Recipe.from_json(json.dumps(recipe)).pixels_sha256
    for change, fits in (({"mean": [1, 2, 3]}, True), ({"interpolation": "bilinear"}, False)):
        found = with_recipe(tmp_path, json.dumps({**recipe, **change}).encode(), None)
        config = json.loads(found["model_config"])
        config["parameters"]["pixels_sha256"] = {"string_value": promised}
        model = code.TritonPythonModel()
        if fits:
            model.initialize({**found, "model_config": json.dumps(config)})
            model.finalize()
        else:
            with pytest.raises(ValueError, match=r"preprocess\.json makes other pixels .*python -m build_engines"):
                model.initialize({**found, "model_config": json.dumps(config)})


def test_without_a_hash_any_recipe_is_taken(code: Any, tmp_path: Path) -> None:
    """As in a repository that was made by hand."""
    content = (REPOSITORY / "classifier" / "preprocess.json").read_bytes()
    model = code.TritonPythonModel()
    model.initialize(with_recipe(tmp_path, content + b"\n", None))
    assert model._recipe.size == 224
    model.finalize()


def test_the_folder_can_be_copied_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second preprocessor, for another model, is a copy of this folder."""
    shutil.copytree(PREPROCESSOR, tmp_path / "other" / "1", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    copy = load_by_path(tmp_path / "other" / "1" / "model.py", "another_preprocessor")
    assert Path(copy.imaging.__file__).is_relative_to(tmp_path)


def test_an_ensemble_takes_no_more_than_its_steps() -> None:
    """Triton does not check it, and fails in the middle of a batch."""
    for ensemble in REPOSITORY.glob("ensemble_model/**/*.pbtxt"):
        config = parse(ensemble)
        for step in config.ensemble_scheduling.step:
            folder = REPOSITORY / step.model_name
            variant = folder / "configs" / ensemble.name
            same = variant if ensemble.name != "config.pbtxt" and variant.exists() else folder / "config.pbtxt"
            assert config.max_batch_size <= parse(same).max_batch_size, (ensemble, step.model_name)
