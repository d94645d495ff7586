from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines import publish
from build_engines.configs import Entry, Serving, Tuning
from build_engines.errors import PublishError
from tests.build_engines.conftest import TINY_RECIPE

SERVING = Serving(platform='backend: "python"', variant="cpu", max_batch=32, instances=2, delay_us=0)
GPU = Serving(platform='platform: "tensorrt_plan"', variant="", max_batch=64, instances=1, delay_us=100, warmup=True)
CERTIFICATE = {"source": {"name": "tiny"}, "preprocess": {"sha256": "…"}, "words": 'quotes " and \\ and ü\n'}


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    """A model in an empty repository."""
    return Entry(tmp_path, "tiny")


def files(recipe: dict[str, Any] | None = None, labels: str = "cat\ndog\n") -> dict[str, bytes]:
    """What a build hands over."""
    return {
        "model.onnx": b"graph",
        "preprocess.json": json.dumps(recipe or TINY_RECIPE).encode(),
        "labels.txt": labels.encode(),
    }


def stage(entry: Entry, serving: Serving = SERVING, **changes: Any) -> str:
    """A new version's number."""
    return publish.stage(entry, files(**changes), serving=serving, size=14, width=2, certificate=CERTIFICATE).name


def config(path: Path) -> ModelConfig:
    """A configuration, read as strictly as Triton reads it."""
    return text_format.Parse(path.read_text(), ModelConfig())


def test_a_staged_version_is_complete_and_not_served(entry: Entry) -> None:
    """Every file, its hash in the certificate, readable by another user; and nothing beside it has changed."""
    folder = entry.folder / stage(entry)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    certificate = publish.read_certificate(folder)
    assert certificate is not None
    assert (certificate["schema"], certificate["version"]) == (publish.SCHEMA, "1")
    assert set(certificate["files"]) == set(files())
    assert [path.name for path in entry.folder.iterdir()] == ["1"]
    assert publish.served(entry, "cpu") is None


def test_promoting_writes_what_triton_reads(entry: Entry) -> None:
    """Three configurations that fit together: one version and no other, the recipe's hash on both sides, labels."""
    publish.promote(entry, stage(entry))
    network = config(entry.folder / "configs" / "cpu.pbtxt")
    assert list(network.version_policy.specific.versions) == [1]
    shown = json.loads(network.parameters["certificate"].string_value)
    assert shown["words"] == CERTIFICATE["words"]
    assert "files" not in shown
    assert (network.input[0].dims, network.output[0].dims) == ([14, 14, 3], [2])
    assert network.output[0].label_filename == "1/labels.txt"
    assert (entry.folder / network.output[0].label_filename).read_text() == "cat\ndog\n"
    preprocessor = config(entry.repository / entry.preprocessor / "configs" / "cpu.pbtxt")
    recipe = entry.repository / preprocessor.parameters["preprocess"].string_value
    assert json.loads(recipe.read_bytes()) == TINY_RECIPE
    assert len(preprocessor.parameters["preprocess_sha256"].string_value) == 64
    assert (entry.repository / entry.preprocessor / "1" / "model.py").is_file()
    ensemble = config(entry.repository / "tiny" / "configs" / "cpu.pbtxt")
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == [entry.preprocessor, entry.network]
    assert list(ensemble.version_policy.specific.versions) == [1], "an answer says which engine gave it"
    assert ensemble.ensemble_scheduling.step[1].model_version == 1
    assert (entry.repository / "tiny" / "1").is_dir()
    assert ensemble.parameters["task"].string_value == "classify"
    assert publish.served(entry, "cpu") == "1"


def test_rolling_back_brings_back_everything(entry: Entry) -> None:
    """The version before is served with the recipe and the labels that it was judged with; nothing is moved."""
    publish.promote(entry, stage(entry))
    publish.promote(entry, stage(entry, recipe={**TINY_RECIPE, "resize_to": 20}, labels="one\ntwo\n"))
    assert publish.rollback(entry, "cpu") == "1"
    assert publish.served(entry, "cpu") == "1"
    network = config(entry.folder / "configs" / "cpu.pbtxt")
    assert (entry.folder / network.output[0].label_filename).read_text() == "cat\ndog\n"
    preprocessor = config(entry.repository / entry.preprocessor / "configs" / "cpu.pbtxt")
    recipe = entry.repository / preprocessor.parameters["preprocess"].string_value
    assert json.loads(recipe.read_bytes()) == TINY_RECIPE
    assert publish.versions(entry) == ["1", "2"]
    with pytest.raises(PublishError, match="no version before 1"):
        publish.rollback(entry, "cpu")


def test_cpu_and_gpu_have_versions_of_their_own(entry: Entry) -> None:
    """An engine for GPUs is served from config.pbtxt, and going back on one side leaves the other as it is."""
    publish.promote(entry, stage(entry))
    publish.promote(entry, stage(entry, GPU))
    publish.promote(entry, stage(entry))
    assert (publish.served(entry, "cpu"), publish.served(entry, "")) == ("3", "2")
    gpu = config(entry.folder / "config.pbtxt")
    assert gpu.platform == "tensorrt_plan"
    assert [sample.batch_size for sample in gpu.model_warmup] == [1, 64]
    assert publish.rollback(entry, "cpu") == "1"
    with pytest.raises(PublishError, match="no version before 2"):
        publish.rollback(entry, "")


@pytest.mark.parametrize("name", ["model.onnx", "labels.txt", "certificate.json"])
def test_a_version_that_was_changed_is_not_served(entry: Entry, name: str) -> None:
    """Versions are as they were published, or they are not promoted."""
    number = stage(entry)
    with (entry.folder / number / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(PublishError, match=r"no whole version 1: there are 1\."):
        publish.promote(entry, number)


def test_only_the_last_versions_stay_and_the_served_one(entry: Entry) -> None:
    """Old versions go when a newer one is promoted; what is served never goes."""
    publish.promote(entry, stage(entry))
    for _ in range(4):
        stage(entry)
    publish.promote(entry, "1")
    assert publish.versions(entry) == ["1", "3", "4", "5"]


@pytest.mark.parametrize("step", ["write_bytes", "rename"])
def test_a_failure_leaves_what_was_there(entry: Entry, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When a file cannot be written or the folder not be moved, nothing has changed and nothing is left behind."""
    publish.promote(entry, stage(entry))
    before = sorted(path.relative_to(entry.repository) for path in entry.repository.rglob("*"))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"write_bytes": (Path, "write_bytes"), "rename": (os, "rename")}[step], fail)
    with pytest.raises(PublishError, match="No space left on device"):
        stage(entry)
    monkeypatch.undo()
    assert sorted(path.relative_to(entry.repository) for path in entry.repository.rglob("*")) == before


def test_an_interrupt_leaves_no_half_version(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of writing."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stage(entry)
    assert list(entry.folder.iterdir()) == []


def test_tuning_is_kept_for_the_versions_to_come(entry: Entry) -> None:
    """What was tuned goes into the configuration that is served, and into that of the next version, too."""
    publish.promote(entry, stage(entry))
    publish.retune(entry, "cpu", Tuning(instances=3, threads=1, max_batch=8, delay_us=500))
    publish.promote(entry, stage(entry))
    network = config(entry.folder / "configs" / "cpu.pbtxt")
    assert network.instance_group[0].count == 3
    assert network.max_batch_size == 8
    assert network.dynamic_batching.max_queue_delay_microseconds == 500
    assert network.parameters["threads"].string_value == "1"
    assert config(entry.repository / "tiny" / "configs" / "cpu.pbtxt").max_batch_size == 8
    assert publish.read_tuning(entry.folder, "cpu") == Tuning(3, 1, 8, 500)
    assert publish.read_tuning(entry.folder, "") == Tuning()
    publish.retune(entry, "cpu", Tuning(max_batch=4096))
    assert config(entry.folder / "configs" / "cpu.pbtxt").max_batch_size == 32, "never above what the engine takes"


def test_a_tuning_file_that_cannot_be_used_is_named(entry: Entry) -> None:
    """Broken JSON or an unknown key: the error names the file, and nothing is guessed."""
    publish.promote(entry, stage(entry))
    for content in ("{", '{"cpu": {"speed": 11}}', "[]"):
        (entry.folder / "tuning.json").write_text(content)
        with pytest.raises(PublishError, match=r"tuning\.json cannot be used"):
            publish.read_tuning(entry.folder, "cpu")


def test_a_pin_is_a_note(entry: Entry) -> None:
    """Which version a person chose can be written down, read and forgotten."""
    entry.folder.mkdir()
    assert publish.pinned(entry) is None
    publish.pin(entry, "4")
    assert publish.pinned(entry) == "4"
    publish.pin(entry, None)
    publish.pin(entry, None)
    assert publish.pinned(entry) is None


@pytest.mark.parametrize("version", ["1/", "./1", "../tiny_classifier/1", "9", "", "latest"])
def test_only_a_version_can_be_promoted(entry: Entry, version: str) -> None:
    """A path is none, even if it leads to a whole version: it would end up in a configuration."""
    publish.promote(entry, stage(entry))
    before = (entry.folder / "configs" / "cpu.pbtxt").read_bytes()
    with pytest.raises(PublishError, match="no whole version"):
        publish.promote(entry, version)
    assert (entry.folder / "configs" / "cpu.pbtxt").read_bytes() == before


@pytest.mark.parametrize(
    ("model", "task", "words"),
    [
        ("tiny_classifier", "classify", "tiny_classifier is the network"),
        ("tiny_preprocessor", "classify", "tiny_preprocessor is the preprocessor"),
        ("tiny", "embed", "tiny is of tiny_preprocessor and tiny_classifier"),
    ],
)
def test_a_model_never_takes_anothers_folder(entry: Entry, model: str, task: str, words: str) -> None:
    """Names that are parts of a model, or a model of another task, are refused before anything is written."""
    publish.promote(entry, stage(entry))
    other = Entry(entry.repository, model, task)
    before = sorted(entry.repository.rglob("*"))
    with pytest.raises(PublishError, match=words):
        stage(other)
    assert sorted(entry.repository.rglob("*")) == before


def test_an_interrupted_promotion_serves_no_mixture(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stops, an engine is named together with its own labels and certificate."""
    publish.promote(entry, stage(entry))
    second = stage(entry, labels="one\ntwo\n")
    real = publish._replace
    for steps in range(3):
        left = iter(range(steps))

        def replace(path: Path, content: bytes, left: Any = left) -> None:
            if path.suffix == ".pbtxt" and next(left, None) is None:
                raise KeyboardInterrupt
            real(path, content)

        monkeypatch.setattr(publish, "_replace", replace)
        with pytest.raises(KeyboardInterrupt):
            publish.promote(entry, second)
        monkeypatch.undo()
        network = config(entry.folder / "configs" / "cpu.pbtxt")
        (version,) = network.version_policy.specific.versions
        assert network.output[0].label_filename == f"{version}/labels.txt"
        assert json.loads(network.parameters["certificate"].string_value)["version"] == str(version)
        publish.promote(entry, "1")
    publish.promote(entry, second)
    assert publish.served(entry, "cpu") == "2"
