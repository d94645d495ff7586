"""A real Triton that watches a repository: a shared preprocessor, versions that change under load, and candidates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from build_engines import publish
from build_engines.configs import DEFAULT_EMBEDDER, DEFAULT_MODEL, Entry, Serving
from build_engines.preprocessing import Preprocessing
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.build_engines.conftest import TINY_RECIPE
from tests.pictures import GREEN, encode, solid
from tests.servers import ROOT, executions

SERVING = Serving('backend: "python"', "cpu", max_batch=8, instances=1, delay_us=0, parameters={"threads": "1"})
PROGRAMS = ROOT / "build_engines" / "serving"
COLOURS, COULEURS = ("red", "green", "blue"), ("rouge", "vert", "bleu")
PATIENCE_S = 5.0  # as long as the gateway asks again for a model that is not loaded


def colours(task: str) -> bytes:
    """A network as the content of an ONNX file: how much red, green and blue there is, as features or as shares."""
    output = {"classify": "CLASSIFICATION", "embed": "EMBEDDING"}[task]
    nodes = [
        helper.make_node("Cast", ["PREPROCESSED_IMAGE"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("Div", ["means", "most"], ["scaled"]),
        helper.make_node("Softmax" if task == "classify" else "Identity", ["scaled"], [output]),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("PREPROCESSED_IMAGE", TensorProto.UINT8, ["N", 14, 14, 3])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.array([64], np.float32), "most")],
    )
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    ).SerializeToString()
    return content


# A text is named after its length.
COUNTER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            shares = np.array([[1, 0] if len(text) < 9 else [0, 1] for text in texts[:, 0]], np.float32)
            words = pb_utils.Tensor("KNOWN_WORDS", np.ones((len(texts), 1), np.float32))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CLASSIFICATION", shares), words]))
        return responses
"""


def stage_text(entry: Entry, *labels: str) -> str:
    """The same of a model for texts."""
    files = {"model.py": COUNTER.encode(), "labels.txt": "".join(f"{label}\n" for label in labels).encode()}
    return publish.stage(entry, files, serving=replace(SERVING, variant=""), width=2, certificate={}).name


def stage(entry: Entry, labels: Sequence[str] = ()) -> str:
    """A new version's number."""
    recipe = Preprocessing.of(TINY_RECIPE)
    files = {
        "model.onnx": colours(entry.task),
        "model.py": (PROGRAMS / "model.py").read_bytes(),
        "engine.py": (PROGRAMS / "onnxruntime_engine.py").read_bytes(),
        "preprocess.json": recipe.content,
        **({"labels.txt": "".join(f"{label}\n" for label in labels).encode()} if labels else {}),
    }
    certificate = {"preprocess": {"pixels_sha256": recipe.pixels_sha256}}
    return publish.stage(entry, files, serving=SERVING, size=14, width=3, certificate=certificate).name


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default classifier, version 1 of two, the default embedder, and a model for texts with a candidate."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    repository = tmp_path_factory.mktemp("repository")
    classifier, embedder = Entry(repository, DEFAULT_MODEL), Entry(repository, DEFAULT_EMBEDDER, "embed")
    publish.promote(classifier, stage(classifier, COLOURS))
    stage(classifier, COULEURS)
    publish.promote(embedder, stage(embedder))
    texts = Entry(repository, "lengths", "text_classify")
    publish.promote(texts, stage_text(texts, "short", "long"))
    publish.beside(texts, stage_text(texts, "kurz", "lang"), weight=0.5)
    return repository


@pytest.fixture
def classifier(repository: Path) -> Entry:
    """The default classifier."""
    return Entry(repository, DEFAULT_MODEL)


@pytest.fixture(scope="module")
def triton(repository: Path) -> Iterator[LocalTriton]:
    """Serves all of it, and looks for changes every second."""
    polling = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with LocalTriton([repository], ports=Ports(*free_ports(3)), arguments=polling) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(triton: LocalTriton) -> Iterator[Any]:
    """Of that Triton."""
    with grpc.InferenceServerClient(triton.url) as client:
        yield client


def ask(client: Any, model: str, *outputs: str) -> tuple[str, dict[str, str]]:
    """The version that answers for a green picture, and the name or place of the largest value of each output."""
    file = np.frombuffer(encode(solid(GREEN)), np.uint8)[None]
    inputs = [grpc.InferInput("RAW_IMAGE", file.shape, "UINT8"), grpc.InferInput("IMAGE_LENGTH", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(file)
    inputs[1].set_data_from_numpy(np.array([[file.shape[1]]], np.int32))
    wanted = [grpc.InferRequestedOutput(name, class_count=1) for name in outputs]
    answer = infer(client, model, inputs, wanted)
    best = {name: answer.as_numpy(name).ravel()[0].decode().split(":") for name in outputs}
    return answer.get_response().model_version, {name: parts[-1] for name, parts in best.items()}


def infer(client: Any, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
    """The answer, asked for again as the gateway does while a model is exchanged."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.infer(model, inputs, outputs=outputs)
        except InferenceServerException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def wait_until(done: Callable[[], bool]) -> None:
    """Until Triton has taken a change."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_execution_of_the_preprocessor_serves_both_networks(repository: Path) -> None:
    """Features and classes of one request come from the same pixels; the classifier runs only for those who ask."""
    # One that does not poll: after its first look such a one loads everything again, and counts anew.
    with LocalTriton([repository], ports=Ports(*free_ports(3))) as triton:
        triton.wait_ready()

        def counts() -> list[int]:
            return [executions(triton.ports.metrics, model) for model in ("preprocessor", "embedder", "classifier")]

        with grpc.InferenceServerClient(triton.url) as client:
            before = counts()
            version, best = ask(client, DEFAULT_EMBEDDER, "EMBEDDING", "CLASSIFICATION")
            assert (version, best) == ("1", {"EMBEDDING": "1", "CLASSIFICATION": "green"})
            assert np.subtract(counts(), before).tolist() == [1, 1, 1]
            before = counts()
            assert ask(client, DEFAULT_EMBEDDER, "EMBEDDING") == ("1", {"EMBEDDING": "1"})
            assert np.subtract(counts(), before).tolist() == [1, 1, 0]


def test_a_candidate_answers_beside_the_main_version(classifier: Entry, client: Any) -> None:
    """With its own labels and its own number, while the main version answers as before; then it is gone again."""
    publish.beside(classifier, "2", weight=0.1)
    wait_until(lambda: bool(client.is_model_ready("ensemble_model.v2")))
    assert ask(client, "ensemble_model.v2", "CLASSIFICATION") == ("2", {"CLASSIFICATION": "vert"})
    assert ask(client, DEFAULT_MODEL, "CLASSIFICATION") == ("1", {"CLASSIFICATION": "green"})
    config = client.get_model_config("ensemble_model.v2").config
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "task": "classify",
        "version_of": DEFAULT_MODEL,
        "weight": "0.1",
        "shadow": "0",
    }
    assert publish.leave_alone(classifier) == ["2"]
    wait_until(lambda: not client.is_model_ready("ensemble_model.v2"))
    assert ask(client, DEFAULT_MODEL, "CLASSIFICATION") == ("1", {"CLASSIFICATION": "green"})


@pytest.mark.parametrize(("model", "version", "label"), [("lengths", "1", "long"), ("lengths.v2", "2", "lang")])
def test_a_model_for_texts_is_one_model(client: Any, model: str, version: str, label: str) -> None:
    """Callers name it itself, and its candidate has its own labels, too."""
    text = grpc.InferInput("TEXT", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"Triton serves it"]], np.object_))
    answer = infer(client, model, [text], [grpc.InferRequestedOutput("CLASSIFICATION", class_count=1)])
    assert answer.get_response().model_version == version
    assert answer.as_numpy("CLASSIFICATION").ravel()[0].decode().endswith(f":1:{label}")


def test_no_answer_is_lost_or_mixed_while_the_classifier_changes(
    classifier: Entry, triton: LocalTriton, client: Any
) -> None:
    """A candidate is put beside, promoted and rolled back under load: each number stands for one pair of engines."""
    stop, answers, failures = threading.Event(), [], []

    def keep_asking() -> None:
        with grpc.InferenceServerClient(triton.url) as own:
            while not stop.is_set():
                try:
                    for model, outputs in (
                        (DEFAULT_EMBEDDER, ["EMBEDDING", "CLASSIFICATION"]),
                        (DEFAULT_MODEL, ["CLASSIFICATION"]),
                    ):
                        version, best = ask(own, model, *outputs)
                        answers.append((model, version, best["CLASSIFICATION"]))
                except InferenceServerException as error:
                    failures.append(str(error))

    caller = threading.Thread(target=keep_asking)
    caller.start()
    try:
        publish.beside(classifier, "2")
        wait_until(lambda: bool(client.is_model_ready("ensemble_model.v2")))
        publish.promote(classifier, "2")
        wait_until(lambda: (DEFAULT_EMBEDDER, "2", "vert") in answers)
        assert publish.rollback(classifier, "cpu") == "1"
        wait_until(lambda: (DEFAULT_EMBEDDER, "3", "green") in answers)
    finally:
        stop.set()
        caller.join()
    assert failures == []
    assert set(answers) == {
        (DEFAULT_MODEL, "1", "green"),
        (DEFAULT_MODEL, "2", "vert"),
        (DEFAULT_EMBEDDER, "1", "green"),
        (DEFAULT_EMBEDDER, "2", "vert"),
        (DEFAULT_EMBEDDER, "3", "green"),
    }
    assert not client.is_model_ready("ensemble_model.v2"), "it is the main version, or was"
