from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.configs import (
    DEFAULT_EMBEDDER,
    DEFAULT_MODEL,
    Entry,
    Serving,
    Shared,
    ensemble_config,
    network_config,
    parameter_of,
    preprocessor_config,
    steps_of,
    text_config,
    version_of,
)
from build_engines.preprocessing import Preprocessing
from build_engines.targets.tensorrt import SERVING, serving

REPOSITORY = Path(__file__).parents[2] / "model_repository"
CONFIGS = sorted(REPOSITORY.rglob("config.pbtxt"))

each_config = pytest.mark.parametrize("path", CONFIGS, ids=[str(path.relative_to(REPOSITORY)) for path in CONFIGS])


def parse(path: Path) -> Any:
    """The configuration, read as strictly as Triton reads it."""
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def model_of(path: Path) -> Path:
    """The folder of the model that a configuration belongs to."""
    return path.parent if path.name == "config.pbtxt" else path.parents[1]


def interface(tensors: Any) -> dict[str, tuple[int, list[int]]]:
    """Names, types and dimensions of some inputs or outputs."""
    return {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in tensors}


def test_every_model_has_a_configuration() -> None:
    """Each of the five has one for the GPU server; those for CPUs are written by builds."""
    for model in ("classifier", "embedder", "embedding_ensemble", "ensemble_model", "preprocessor"):
        assert REPOSITORY / model / "config.pbtxt" in CONFIGS


@each_config
def test_a_configuration_is_one_for_triton(path: Path) -> None:
    """Every field exists and has a value that Triton's own definition allows; the name is the folder's."""
    assert parse(path).name == model_of(path).name


@each_config
def test_variants_of_a_model_have_one_interface(path: Path) -> None:
    """Where a model runs makes no difference to what it takes and gives."""
    main, variant = parse(model_of(path) / "config.pbtxt"), parse(path)
    assert interface(variant.input) == interface(main.input)
    assert interface(variant.output) == interface(main.output)


@each_config
def test_labels_are_named_where_they_are(path: Path) -> None:
    """A file of labels that a configuration names is there, with a line for each class."""
    for output in parse(path).output:
        if output.label_filename:
            labels = (model_of(path) / output.label_filename).read_text()
            assert labels.count("\n") == output.dims[-1]


@each_config
def test_a_step_drops_what_is_late(path: Path) -> None:
    """A step that gathers requests rejects those whose time is up, and a request may set its own time."""
    config = parse(path)
    if config.HasField("dynamic_batching"):
        policy = config.dynamic_batching.default_queue_policy
        assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.REJECT
        assert policy.default_timeout_microseconds > 0
        assert policy.allow_timeout_override


@each_config
def test_an_ensemble_has_no_warmup_of_its_own(path: Path) -> None:
    """Triton does not load an ensemble with `model_warmup`: its steps have it."""
    config = parse(path)
    assert not (config.platform == "ensemble" and config.model_warmup)


def test_the_classifier_takes_pixels_and_gives_probabilities() -> None:
    """UINT8 pixels of 224 × 224 in, a thousand named probabilities out, on both kinds of server."""
    config = parse(REPOSITORY / "classifier" / "config.pbtxt")
    assert interface(config.input) == {"PREPROCESSED_IMAGE": (model_config_pb2.TYPE_UINT8, [224, 224, 3])}
    assert interface(config.output) == {"CLASSIFICATION": (model_config_pb2.TYPE_FP32, [1000])}


def test_the_classifier_on_the_cpu_is_two_instances() -> None:
    """One computes on all cores while the other hands its answers over."""
    (group,) = parse(REPOSITORY / "classifier" / "configs" / "cpu.pbtxt").instance_group
    assert (group.count, group.kind) == (2, model_config_pb2.ModelInstanceGroup.KIND_CPU)


def test_the_files_in_git_are_what_the_builder_writes() -> None:
    """The default models' GPU configurations say, word for word, what TensorRT builds of them would publish."""
    classifier = Entry(REPOSITORY, DEFAULT_MODEL)
    embedder = Entry(REPOSITORY, DEFAULT_EMBEDDER, "embed")
    recipe = Preprocessing.read((REPOSITORY / "classifier" / "preprocess.json").read_bytes())
    hashes = {
        "recipe_sha256": hashlib.sha256(recipe.content).hexdigest(),
        "pixels_sha256": recipe.pixels_sha256,
    }
    shared = Shared(classifier, SERVING, width=1000)
    written = {
        "classifier": network_config(classifier, SERVING, size=224, width=1000),
        "ensemble_model": ensemble_config(classifier, SERVING, width=1000),
        "preprocessor": preprocessor_config(classifier, size=224, **hashes),
        "embedder": network_config(embedder, serving("embed"), size=224, width=1280),
        "embedding_ensemble": ensemble_config(embedder, serving("embed"), width=1280, shared=shared),
    }
    for model, text in written.items():
        assert (REPOSITORY / model / "config.pbtxt").read_text() == text


CPU = Serving('backend: "python"', "cpu", 8, instances=2, delay_us=5, why={"head": "a\nb"}, parameters={"threads": "1"})
AWKWARD = 'quotes " and \\ and ü\n'


@pytest.mark.parametrize("candidate", [None, "12"])
@pytest.mark.parametrize("variant", [SERVING, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("task", ["classify", "embed", "text_classify", "text_embed"])
def test_whatever_is_published_is_one_for_triton(task: str, variant: Serving, candidate: str | None) -> None:
    """Each configuration of every kind of model is read as strictly as Triton reads it, and named as its folder."""
    entry = Entry(REPOSITORY, "flowers", task, candidate)
    certificate, shown = {"version": "12", "words": AWKWARD}, {"moderation": AWKWARD}
    about: dict[str, Any] = {"width": 5, "version": "12"}
    if entry.single:
        texts = {entry.name: text_config(entry, variant, certificate=certificate, shown=shown, **about)}
    else:
        texts = {
            entry.preprocessor: preprocessor_config(
                entry, size=224, recipe_sha256="a", pixels_sha256="b", version="12"
            ),
            entry.network: network_config(entry, variant, size=224, certificate=certificate, **about),
            entry.name: ensemble_config(entry, variant, shown=shown, **about),
        }
    assert tuple(texts) == entry.parts
    for name, text in texts.items():
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert config.name == name
        assert list(config.version_policy.specific.versions) == [12]
        assert version_of(text) == "12"
        assert config.platform or config.backend
        for key, value in config.parameters.items():
            assert parameter_of(text, key) == value.string_value
    named = text_format.Parse(texts[entry.name], model_config_pb2.ModelConfig())
    assert named.parameters["moderation"].string_value == AWKWARD
    assert named.parameters["task"].string_value == task
    assert steps_of(texts[entry.name]) == [(part, "12") for part in entry.parts[:-1]]
    engine = text_format.Parse(texts[entry.network], model_config_pb2.ModelConfig())
    assert json.loads(engine.parameters["certificate"].string_value) == certificate
    assert engine.output[0].label_filename == ("12/labels.txt" if task.endswith("classify") else "")
    (group,) = engine.instance_group
    gpu = variant is SERVING and not entry.single
    kinds = model_config_pb2.ModelInstanceGroup
    assert group.kind == (kinds.KIND_GPU if gpu else kinds.KIND_CPU)


def test_an_ensemble_that_shares_has_a_number_of_its_own() -> None:
    """Three steps of two engines' versions; the batch is the smallest, and only Triton's names of tensors differ."""
    embedder = Entry(REPOSITORY, DEFAULT_EMBEDDER, "embed")
    torch = Serving("", "", max_batch=4, instances=1, delay_us=0, output_suffix="__0")
    shared = Shared(Entry(REPOSITORY, DEFAULT_MODEL), torch, width=1000, version="16")
    text = ensemble_config(embedder, SERVING, width=1280, version="3", number="7", shared=shared)
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert steps_of(text) == [("preprocessor", "16"), ("embedder", "3"), ("classifier", "16")]
    assert version_of(text) == "7"
    assert config.max_batch_size == 4
    assert dict(config.ensemble_scheduling.step[2].output_map) == {"CLASSIFICATION__0": "CLASSIFICATION"}
    assert interface(config.output)["CLASSIFICATION"] == (model_config_pb2.TYPE_FP32, [1000])
