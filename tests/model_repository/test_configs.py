from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.configs import DEFAULT_MODEL, Entry, ensemble_config, network_config, preprocessor_config
from build_engines.targets.tensorrt import SERVING

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
    """Each of the three has one for the GPU server; those for CPUs are written by builds."""
    for model in ("classifier", "ensemble_model", "preprocessor"):
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
    """The default model's GPU configurations say, word for word, what a TensorRT build of it would publish."""
    entry = Entry(REPOSITORY, DEFAULT_MODEL)
    recipe = hashlib.sha256((REPOSITORY / "classifier" / "preprocess.json").read_bytes()).hexdigest()
    written = {
        "classifier": network_config(entry, SERVING, size=224, width=1000),
        "ensemble_model": ensemble_config(entry, SERVING, width=1000),
        "preprocessor": preprocessor_config(entry, size=224, recipe_sha256=recipe),
    }
    for model, text in written.items():
        assert (REPOSITORY / model / "config.pbtxt").read_text() == text
