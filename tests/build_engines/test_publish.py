"""Versions in a repository: whole or not at all, served with what they were judged with, shared, and beside others."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines import publish
from build_engines.configs import DEFAULT_EMBEDDER, DEFAULT_MODEL, Entry, Serving, Tuning
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


def stage(
    entry: Entry,
    serving: Serving = SERVING,
    *,
    pixels: str = "a",
    shown: Mapping[str, str] | None = None,
    **changes: Any,
) -> str:
    """A new version's number; versions of the same `pixels` may share a preprocessor."""
    certificate = {**CERTIFICATE, "preprocess": {"sha256": "…", "pixels_sha256": pixels}}
    content = files(**changes)
    if entry.single:
        del content["preprocess.json"]
    return publish.stage(entry, content, serving=serving, size=14, width=2, certificate=certificate, shown=shown).name


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


@pytest.fixture
def classifier(tmp_path: Path) -> Entry:
    """The default classifier in an empty repository."""
    return Entry(tmp_path, DEFAULT_MODEL)


@pytest.fixture
def embedder(tmp_path: Path) -> Entry:
    """The default embedder in the same one."""
    return Entry(tmp_path, DEFAULT_EMBEDDER, "embed")


def model(entry: Entry, name: str, variant: str = "cpu") -> ModelConfig:
    """What a server reads of a model in the entry's repository."""
    return config(entry.repository / name / ("configs/cpu.pbtxt" if variant else "config.pbtxt"))


def steps(entry: Entry, variant: str = "cpu") -> list[tuple[str, int]]:
    """The models that the entry's ensemble asks, with their versions."""
    found = model(entry, entry.name, variant).ensemble_scheduling.step
    return [(step.model_name, step.model_version) for step in found]


def only_version(found: ModelConfig) -> int:
    """The one version that is served of a model."""
    (version,) = found.version_policy.specific.versions
    return int(version)


def test_what_a_model_tells_of_itself_is_kept_with_its_version(entry: Entry) -> None:
    """More parameters of the model that callers name: promoting an old version brings its own ones back."""
    publish.promote(entry, stage(entry, shown={"moderation": '{"nsfw": {"category": "sexual"}}'}))
    publish.promote(entry, stage(entry))
    assert set(model(entry, "tiny").parameters) == {"task"}
    publish.rollback(entry, "cpu")
    assert json.loads(model(entry, "tiny").parameters["moderation"].string_value)["nsfw"] == {"category": "sexual"}
    assert "moderation" not in model(entry, entry.network).parameters


def test_embedder_and_classifier_share_the_preprocessor(classifier: Entry, embedder: Entry) -> None:
    """Of the same pixels: three steps, both outputs, the smallest batch of all; and no preprocessor of its own."""
    publish.promote(classifier, stage(classifier))
    small = Serving('backend: "python"', "cpu", max_batch=8, instances=1, delay_us=0)
    publish.promote(embedder, stage(embedder, small, shown={"normalised": "l2"}))
    assert steps(embedder) == [("preprocessor", 1), ("embedder", 1), ("classifier", 1)]
    ensemble = model(embedder, DEFAULT_EMBEDDER)
    assert [output.name for output in ensemble.output] == ["EMBEDDING", "CLASSIFICATION", "IMAGE_STATUS"]
    assert ensemble.max_batch_size == 8
    assert {key: value.string_value for key, value in ensemble.parameters.items()} == {
        "task": "embed",
        "normalised": "l2",
    }
    assert model(classifier, "preprocessor").parameters["pixels_sha256"].string_value == "a"
    assert not (embedder.repository / embedder.preprocessor).exists()
    publish.retune(classifier, "cpu", Tuning(max_batch=4))
    assert model(embedder, DEFAULT_EMBEDDER).max_batch_size == 4, "Triton takes no ensemble with more than a step has"
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 1, "the same engines, the same number"


def test_other_pixels_need_a_preprocessor_of_their_own(classifier: Entry, embedder: Entry) -> None:
    """It comes when the classifier's recipe leaves the embedder's, and goes when they are the same again."""
    publish.promote(embedder, stage(embedder))
    assert steps(embedder) == [("embedding_ensemble_preprocessor", 1), ("embedder", 1)]
    publish.promote(classifier, stage(classifier, pixels="b"))
    assert steps(embedder) == [("embedding_ensemble_preprocessor", 1), ("embedder", 1)]
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 1
    publish.promote(classifier, stage(classifier))
    assert steps(embedder) == [("preprocessor", 2), ("embedder", 1), ("classifier", 2)]
    assert not (embedder.repository / "embedding_ensemble_preprocessor").exists()
    publish.rollback(classifier, "cpu")
    assert steps(embedder) == [("embedding_ensemble_preprocessor", 1), ("embedder", 1)]
    own = model(embedder, "embedding_ensemble_preprocessor").parameters
    recipe = (embedder.repository / own["preprocess"].string_value).read_bytes()
    assert own["preprocess_sha256"].string_value == hashlib.sha256(recipe).hexdigest()
    assert own["pixels_sha256"].string_value == "a"
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 3, "a new number each time"


def test_each_pair_of_engines_has_a_number_of_its_own(classifier: Entry, embedder: Entry) -> None:
    """Whichever of the two is promoted or rolled back: no number of the ensemble ever stands for another pair."""
    pairs: dict[int, list[tuple[str, int]]] = {}

    def look() -> int:
        number = only_version(model(embedder, DEFAULT_EMBEDDER))
        assert (embedder.repository / DEFAULT_EMBEDDER / str(number)).is_dir()
        assert pairs.setdefault(number, steps(embedder)) == steps(embedder)
        return number

    publish.promote(classifier, stage(classifier))
    publish.promote(embedder, stage(embedder))
    assert look() == 1
    for change in (
        lambda: publish.promote(classifier, stage(classifier)),
        lambda: publish.rollback(classifier, "cpu"),
        lambda: publish.promote(classifier, "1"),
        lambda: publish.promote(embedder, stage(embedder)),
        lambda: publish.promote(classifier, "2"),
        lambda: publish.rollback(embedder, "cpu"),
    ):
        change()
        look()
    assert sorted(pairs) == [1, 2, 3, 4, 5, 6]
    assert pairs[4] == [("preprocessor", 1), ("embedder", 4), ("classifier", 1)], "a new embedder brings its number"
    folders = sorted(path.name for path in (embedder.repository / DEFAULT_EMBEDDER).iterdir() if path.is_dir())
    assert folders == ["4", "5", "6", "configs"], "old numbers go"
    assert publish.versions(embedder) == ["1", "4"]


def test_an_embedder_shares_with_what_its_kind_of_server_serves(classifier: Entry, embedder: Entry) -> None:
    """GPU servers and CPU servers have a classifier of their own, or none."""
    publish.promote(classifier, stage(classifier, GPU))
    publish.promote(embedder, stage(embedder))
    assert steps(embedder) == [("embedding_ensemble_preprocessor", 1), ("embedder", 1)]
    publish.promote(embedder, stage(embedder, GPU))
    assert steps(embedder, "") == [("preprocessor", 1), ("embedder", 2), ("classifier", 1)]
    assert (embedder.repository / "embedding_ensemble_preprocessor").exists(), "of the embedder on CPUs"
    publish.promote(classifier, stage(classifier))
    assert steps(embedder) == [("preprocessor", 2), ("embedder", 1), ("classifier", 2)]
    assert steps(embedder, "") == [("preprocessor", 1), ("embedder", 2), ("classifier", 1)]


def test_a_users_own_embedder_shares_nothing(classifier: Entry) -> None:
    """Only the default one does: another's version must not hang on what somebody else promotes."""
    publish.promote(classifier, stage(classifier))
    own = Entry(classifier.repository, "dino", "embed")
    publish.promote(own, stage(own))
    assert steps(own) == [("dino_preprocessor", 1), ("dino_embedder", 1)]


def test_the_folder_in_git_is_no_number_yet(classifier: Entry, embedder: Entry) -> None:
    """A checkout has an empty version 1 of the ensemble, which is the first one's and stays."""
    kept = embedder.repository / DEFAULT_EMBEDDER / "1" / ".gitkeep"
    kept.parent.mkdir(parents=True)
    kept.touch()
    publish.promote(embedder, stage(embedder))
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 1
    for _ in range(5):
        publish.promote(classifier, stage(classifier))
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 6
    assert kept.exists()


def mixture(entry: Entry) -> str:
    """What would answer wrongly of what the entry serves on CPUs; "not ready" where nothing would answer."""
    repository, ensemble = entry.repository, model(entry, entry.name)
    if not (repository / entry.name / str(only_version(ensemble))).is_dir():
        return "not ready"
    pixels, wanted = "", set()
    for step in ensemble.ensemble_scheduling.step:
        if not (repository / step.model_name / "configs" / "cpu.pbtxt").is_file():
            return "not ready"
        found = model(entry, step.model_name)
        folder = repository / step.model_name / str(step.model_version)
        if only_version(found) != step.model_version or not folder.is_dir():
            return "not ready"
        if "preprocess" in found.parameters:
            pixels = found.parameters["pixels_sha256"].string_value
            recipe = (repository / found.parameters["preprocess"].string_value).read_bytes()
            if found.parameters["preprocess_sha256"].string_value != hashlib.sha256(recipe).hexdigest():
                return f"{step.model_name} has another recipe than it says"
        else:
            certificate = json.loads(found.parameters["certificate"].string_value)
            wanted.add(certificate["preprocess"]["pixels_sha256"])
            if certificate["version"] != str(step.model_version):
                return f"{step.model_name} has the certificate of version {certificate['version']}"
            names = {output.label_filename for output in found.output} - {"", f"{step.model_version}/labels.txt"}
            if names:
                return f"{step.model_name} has the labels {names}"
    return "" if wanted == {pixels} else f"pixels {pixels} for engines of {wanted}"


class Killed(BaseException):
    """A process that ends."""


@pytest.mark.parametrize("pixels", ["a", "b"])
def test_an_interrupted_promotion_serves_no_mixture(
    classifier: Entry, embedder: Entry, monkeypatch: pytest.MonkeyPatch, pixels: str
) -> None:
    """Wherever it stops, on the way there and on the way back, everything is right or not ready, in both ensembles."""
    publish.promote(classifier, stage(classifier))
    publish.promote(embedder, stage(embedder))
    second = stage(classifier, labels="one\ntwo\n", pixels=pixels)
    third = stage(embedder)
    pairs: dict[int, list[tuple[str, int]]] = {}
    seen = set()

    def look() -> set[str]:
        states = {mixture(classifier), mixture(embedder)}
        assert states <= {"", "not ready"}
        if mixture(embedder) == "":
            number = only_version(model(embedder, DEFAULT_EMBEDDER))
            assert pairs.setdefault(number, steps(embedder)) == steps(embedder)
        return states

    for entry, there, back in ((classifier, second, "1"), (embedder, third, "1")):
        for target, other in ((there, back), (back, there)):
            publish.promote(entry, other)
            assert look() == {""}
            count = 0
            while True:
                with monkeypatch.context() as patch:
                    left = iter(range(count))

                    def stop_at(real: Any, left: Any = left) -> Any:
                        def stopping(*arguments: Any) -> None:
                            if next(left, None) is None:
                                raise Killed
                            real(*arguments)

                        return stopping

                    for name in ("replace_file", "remove_folder"):
                        patch.setattr(publish, name, stop_at(getattr(publish, name)))
                    try:
                        publish.promote(entry, target)
                    except Killed:
                        seen |= look()
                    else:
                        break
                publish.promote(entry, other)
                assert look() == {""}, "promoting again mends it"
                count += 1
            assert look() == {""}
            assert publish.served(entry, "cpu") == target
            assert count > 3
    assert seen == {"", "not ready"}


def test_a_version_is_served_beside_the_main_one(entry: Entry) -> None:
    """A second set of three models with names of their own, complete in itself; the main one is as it was."""
    publish.promote(entry, stage(entry))
    second = stage(entry, labels="one\ntwo\n")
    before = {path: path.read_bytes() for path in entry.repository.rglob("*") if path.is_file()}
    publish.beside(entry, second, weight=0.1, shadow=0.5)
    assert {path: path.read_bytes() for path in before} == before
    beside = entry.beside(second)
    assert mixture(entry) == mixture(beside) == ""
    assert beside.parts == ("tiny_preprocessor.v2", "tiny_classifier.v2", "tiny.v2")
    assert steps(beside) == [("tiny_preprocessor.v2", 2), ("tiny_classifier.v2", 2)]
    network = model(entry, "tiny_classifier.v2")
    assert (beside.folder / network.output[0].label_filename).read_text() == "one\ntwo\n"
    recipe = model(entry, "tiny_preprocessor.v2").parameters["preprocess"].string_value
    assert recipe == "tiny_classifier.v2/2/preprocess.json"
    assert {key: value.string_value for key, value in model(entry, "tiny.v2").parameters.items()} == {
        "task": "classify",
        "version_of": "tiny",
        "weight": "0.1",
        "shadow": "0.5",
    }
    engine = entry.folder / second / "model.onnx"
    assert (beside.folder / second / "model.onnx").samefile(engine), "big files are not there twice"
    publish.beside(entry, second, weight=0.2)
    (candidate,) = publish.candidates(entry)
    assert candidate == publish.Candidate(second, "cpu", 0.2, 0)
    assert publish.leave_alone(entry) == [second]
    after = {path: path.read_bytes() for path in entry.repository.rglob("*") if path.is_file()}
    assert after == before
    assert publish.leave_alone(entry) == []


def test_a_candidate_is_copied_where_links_are_not_possible(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another owner, or a file system without links: the same bytes, which are the version's own."""
    publish.promote(entry, stage(entry))

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    publish.beside(entry, stage(entry))
    engine = entry.beside("2").folder / "2" / "model.onnx"
    assert engine.read_bytes() == b"graph"
    assert not engine.samefile(entry.folder / "2" / "model.onnx")


def test_a_promoted_candidate_is_beside_no_more(entry: Entry) -> None:
    """Its set goes when it becomes the main version; the others stay, and so do their versions."""
    publish.promote(entry, stage(entry))
    for _ in range(3):
        publish.beside(entry, stage(entry), weight=0.25)
    publish.promote(entry, "3")
    assert [candidate.version for candidate in publish.candidates(entry)] == ["2", "4"]
    for _ in range(4):
        publish.promote(entry, stage(entry))
    assert publish.versions(entry) == ["2", "4", "6", "7", "8"], "what is beside is not removed"
    publish.leave_alone(entry)
    assert publish.versions(entry) == ["6", "7", "8"]


@pytest.mark.parametrize(
    ("version", "weight", "shadow", "words"),
    [
        ("2", 1.1, 0.0, "The weight 1.1 is no share of requests"),
        ("2", -0.1, 0.0, "The weight -0.1 is no share"),
        ("2", float("nan"), 0.0, "The weight nan is no share"),
        ("2", 0.0, 1.5, "The shadow 1.5 is no share"),
        ("2", 0.5, 0.0, r"All weights together are 1.1, more than 1, with 0.6 of version 3: give a smaller one"),
        ("1", 0.1, 0.0, "Version 1 of tiny is the one that is served"),
        ("9", 0.1, 0.0, "no whole version 9: there are 1, 2, 3"),
        ("../1", 0.1, 0.0, "no whole version ../1"),
    ],
)
def test_what_cannot_be_beside_is_refused(entry: Entry, version: str, weight: float, shadow: float, words: str) -> None:
    """Shares that are none or too many together, the main version itself, and versions that are not there."""
    publish.promote(entry, stage(entry))
    stage(entry)
    publish.beside(entry, stage(entry), weight=0.6)
    before = sorted(entry.repository.rglob("*"))
    with pytest.raises(PublishError, match=words):
        publish.beside(entry, version, weight=weight, shadow=shadow)
    assert sorted(entry.repository.rglob("*")) == before


def test_weights_add_up_to_one_exactly(entry: Entry) -> None:
    """0.33 and 0.56 and 0.11 are 1, however computers add them; a version's own old weight does not count."""
    publish.promote(entry, stage(entry))
    for weight in (0.33, 0.56, 0.11):
        publish.beside(entry, stage(entry), weight=weight)
    publish.beside(entry, "4", weight=0.11, shadow=1)
    assert 0.11 + (0.33 + 0.56) > 1


def test_nothing_is_beside_nothing(entry: Entry) -> None:
    """A version alone is promoted, not put beside."""
    with pytest.raises(PublishError, match="would be alone, because none is served"):
        publish.beside(entry, stage(entry), weight=1)


def test_the_embedders_candidate_has_a_preprocessor_of_its_own(classifier: Entry, embedder: Entry) -> None:
    """One number for its three models, which no pair of the main one has unless it is of the same embedder."""
    publish.promote(classifier, stage(classifier))
    publish.promote(embedder, stage(embedder))
    publish.promote(classifier, stage(classifier))
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 2
    publish.beside(embedder, stage(embedder), weight=0.5)
    beside = embedder.beside("3")
    assert steps(beside) == [("embedding_ensemble_preprocessor.v3", 3), ("embedder.v3", 3)]
    assert mixture(beside) == ""
    publish.promote(classifier, "1")
    assert only_version(model(embedder, DEFAULT_EMBEDDER)) == 4, "3 is the candidate's"
    publish.promote(embedder, "3")
    assert steps(embedder) == [("preprocessor", 1), ("embedder", 3), ("classifier", 1)]
    assert publish.candidates(embedder) == []


def test_half_a_candidate_is_taken_away(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed command left is not ready; giving it again mends it, and --alone removes it."""
    publish.promote(entry, stage(entry))
    second = stage(entry)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(publish, "replace_file", kill)
        with pytest.raises(Killed):
            publish.beside(entry, second)
    assert not (entry.repository / "tiny.v2").exists()
    (entry.beside(second).folder / second / "model.onnx").unlink()
    publish.beside(entry, second)
    assert mixture(entry.beside(second)) == ""
    (entry.repository / "tiny.v2" / "configs" / "cpu.pbtxt").unlink()
    assert publish.candidates(entry) == []
    assert publish.leave_alone(entry) == [second]
    assert not list(entry.repository.glob("*.v*"))


def test_a_candidate_never_takes_anothers_folder(entry: Entry) -> None:
    """A model that happens to have the name is left as it is, and no build may have such a name."""
    publish.promote(entry, stage(entry))
    second = stage(entry)
    path = entry.repository / "tiny.v2" / "config.pbtxt"
    path.parent.mkdir()
    path.write_text('name: "tiny.v2"\nbackend: "python"\n')
    with pytest.raises(PublishError, match=r"tiny\.v2 is the network of a model already"):
        publish.beside(entry, second)
    assert publish.leave_alone(entry) == []
    assert path.exists()
    with pytest.raises(PublishError, match=r"flowers\.v3 ends like a version beside another"):
        stage(Entry(entry.repository, "flowers.v3"))
    stage(Entry(entry.repository, "flowers.v3b"))


TEXTS = Serving('backend: "python"', "", max_batch=16, instances=2, delay_us=0, parameters={"threads": "1"})


@pytest.mark.parametrize(("task", "output"), [("text_classify", "CLASSIFICATION"), ("text_embed", "EMBEDDING")])
def test_a_single_model_goes_the_same_way(tmp_path: Path, task: str, output: str) -> None:
    """A model for texts is one folder: published, promoted, rolled back, tuned and put beside by the same functions."""
    entry = Entry(tmp_path, "words", task)
    publish.promote(entry, stage(entry, TEXTS, shown={"normalised": "l2"}))
    publish.promote(entry, stage(entry, TEXTS))
    assert publish.rollback(entry, "") == "1"
    found = model(entry, "words", "")
    assert only_version(found) == 1
    assert [each.name for each in found.input] == ["TEXT"]
    assert [(each.name, list(each.dims)) for each in found.output] == [(output, [2]), ("KNOWN_WORDS", [1])]
    assert found.output[0].label_filename == ("1/labels.txt" if task == "text_classify" else "")
    assert json.loads(found.parameters["certificate"].string_value)["version"] == "1"
    assert (found.parameters["task"].string_value, found.parameters["normalised"].string_value) == (task, "l2")
    assert found.parameters["threads"].string_value == "1"
    publish.retune(entry, "", Tuning(max_batch=8))
    assert model(entry, "words", "").max_batch_size == 8
    publish.beside(entry, "2", weight=0.5)
    beside = model(entry, "words.v2", "")
    assert only_version(beside) == 2
    assert beside.parameters["version_of"].string_value == "words"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words", "words.v2"]
    assert publish.find_entries(tmp_path, "words") == [entry]
    publish.promote(entry, "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["words"]


def test_a_single_models_folder_is_its_own(tmp_path: Path) -> None:
    """Neither a model for pictures nor one of another task takes it, and it takes no part of theirs."""
    words = Entry(tmp_path, "text_classifier", "text_classify")
    publish.promote(words, stage(words, TEXTS))
    with pytest.raises(PublishError, match="text_classifier is a model of its own already"):
        stage(Entry(tmp_path, "text"))
    with pytest.raises(PublishError, match="text_classifier is for the task text_classify already"):
        stage(Entry(tmp_path, "text_classifier", "text_embed"), TEXTS)
    tiny = Entry(tmp_path, "tiny")
    publish.promote(tiny, stage(tiny))
    with pytest.raises(PublishError, match="tiny_classifier is the network of a model already"):
        stage(Entry(tmp_path, "tiny_classifier", "text_classify"), TEXTS)


def test_versions_of_an_older_form_are_found_and_not_served(entry: Entry) -> None:
    """They are listed, so that their owner builds again, and cannot be promoted."""
    path = entry.folder / stage(entry) / "certificate.json"
    path.write_text(path.read_text().replace(f'"schema": {publish.SCHEMA}', f'"schema": {publish.SCHEMA - 1}'))
    assert publish.find_entries(entry.repository, "tiny") == [entry]
    with pytest.raises(PublishError, match=r"no whole version 1: there are 1\."):
        publish.promote(entry, "1")


def test_what_is_wrong_with_the_embedders_tuning_is_said_first(classifier: Entry, embedder: Entry) -> None:
    """A classifier is not promoted half: what would stop its embedder stops it before anything is written."""
    publish.promote(classifier, stage(classifier))
    publish.promote(embedder, stage(embedder))
    (embedder.folder / "tuning.json").write_text("{")
    second = stage(classifier)
    with pytest.raises(PublishError, match=r"embedder/tuning\.json cannot be used"):
        publish.promote(classifier, second)
    assert publish.served(classifier, "cpu") == "1"
    assert mixture(classifier) == mixture(embedder) == ""
