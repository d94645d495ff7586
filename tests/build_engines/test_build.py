from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines import publish
from build_engines.build import Order, build, calibrate, chosen
from build_engines.calibration import Ranges
from build_engines.configs import Entry, parameter_of
from build_engines.errors import BuildError, GateError, ImageSetError, SourceError, TargetError
from build_engines.images import read_images
from build_engines.preprocessing import Normalisation, Preprocessing
from build_engines.serving import model, openvino_engine
from build_engines.sources import Wish
from tests.build_engines.conftest import TINY_LABELS, TINY_NORMALISATION, TINY_RECIPE, TinySource


def entry_of(order: Order) -> Entry:
    """Where the order's model lies."""
    return Entry(order.repository, order.model)


def certificate_of(folder: Path) -> dict[str, Any]:
    """A version's certificate."""
    certificate: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    return certificate


def quiet(_: str) -> None:
    """Says nothing."""


def test_the_default_model_is_built_in_int8_without_pictures(tmp_path: Path) -> None:
    """One call makes a complete entry; the shipped table calibrates, and the runtime really computes in INT8."""
    said: list[str] = []
    folder = build(Order(repository=tmp_path / "models", work=tmp_path / "work"), said.append)
    assert folder == tmp_path / "models" / "classifier" / "1"
    assert (folder / "model.py").read_bytes() == Path(model.__file__).read_bytes()
    assert (folder / "engine.py").read_bytes() == Path(openvino_engine.__file__).read_bytes()
    certificate = certificate_of(folder)
    assert certificate["precision"] == "int8"
    assert certificate["layers"] == {"int8": 50}
    assert certificate["calibration"]["images"] == 250
    assert certificate["agreement"]["top1"] >= 0.85
    assert [row["batch"] for row in certificate["performance"]["speed"]] == [1, 8, 32]
    assert certificate["performance"]["memory_mib"] > 0
    assert "built version 1 from efficientnet_lite0 (int8)" in said[-1]


def test_a_model_of_ones_own_gets_three_folders(tiny_source: TinySource, order: Order) -> None:
    """The ensemble has the name that callers use; recipe and labels lie where Triton reads them."""
    folder = build(order, quiet)
    assert sorted(path.name for path in order.repository.iterdir()) == ["tiny", "tiny_classifier", "tiny_preprocessor"]
    network = order.repository / "tiny_classifier"
    assert folder == network / "1"
    assert (folder / "labels.txt").read_text() == "cat\ndog\nfish\n"
    assert json.loads((folder / "preprocess.json").read_text()) == TINY_RECIPE
    assert certificate_of(folder)["agreement"]["deviation"] < 1e-4
    assert certificate_of(folder)["layers"] == {"fp32": 11}
    assert certificate_of(folder)["preprocess"] == {
        "sha256": hashlib.sha256((folder / "preprocess.json").read_bytes()).hexdigest(),
        "pixels_sha256": Preprocessing.of(TINY_RECIPE).pixels_sha256,
    }


def test_a_second_build_does_nothing(tiny_source: TinySource, order: Order) -> None:
    """When nothing has changed, the model is not even loaded, no file is written, and the line says so."""
    folder = build(order, quiet)
    files = {path: path.stat().st_mtime_ns for path in order.repository.rglob("*") if path.is_file()}
    said: list[str] = []
    assert build(order, said.append) == folder
    assert {path: path.stat().st_mtime_ns for path in order.repository.rglob("*") if path.is_file()} == files
    assert tiny_source.loaded == 1
    assert said == [f"tiny: version 1 is up to date in {folder}"]


def test_force_builds_the_same_again(tiny_source: TinySource, order: Order) -> None:
    """`force` makes a new version with the same bytes."""
    first, second = build(order, quiet), build(replace(order, force=True), quiet)
    assert (first.name, second.name) == ("1", "2")
    assert (first / "model.onnx").read_bytes() == (second / "model.onnx").read_bytes()


@pytest.mark.parametrize("name", ["model.onnx", "model.py", "engine.py", "certificate.json", "labels.txt"])
def test_a_damaged_version_is_built_again(tiny_source: TinySource, order: Order, name: str) -> None:
    """A version that is not as it was published is never called up to date."""
    folder = build(order, quiet)
    with (folder / name).open("ab") as file:
        file.write(b"x")
    assert build(order, quiet).name == "2"


def test_a_changed_source_is_built_again(tiny_source: TinySource, order: Order) -> None:
    """Other labels or another recipe of the source make a new version."""
    build(order, quiet)
    tiny_source.recipe = {**TINY_RECIPE, "resize_to": 20}
    folder = build(order, quiet)
    assert folder.name == "2"
    assert json.loads((folder / "preprocess.json").read_text())["resize_to"] == 20


def test_another_builder_builds_again(
    tiny_source: TinySource, order: Order, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A change of the builder's own code makes what it built out of date."""
    build(order, quiet)
    (tmp_path / "builder").mkdir()
    (tmp_path / "builder" / "gate.py").write_text("# changed\n")
    monkeypatch.setattr("build_engines.build._PACKAGE", tmp_path / "builder")
    assert build(order, quiet).name == "2"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        pytest.param({"mean": (119.0, 109.0, 99.0)}, "already in FP32, it deviates", id="normalisation"),
        pytest.param({"color": "swapped"}, "already in FP32, it deviates", id="channels"),
    ],
)
def test_a_graph_with_a_mistake_is_refused(
    tiny_source: TinySource, order: Order, mistake: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong mean, or the first filters' channels swapped: refused, whatever the precision; a report shows it."""
    right = tiny_source.graph

    def wrong(normalisation: Normalisation) -> bytes:
        if normalisation.size == 14 and "color" in mistake:
            weights = dict(tiny_source.weights)
            weights["_conv_stem.weight"] = np.ascontiguousarray(weights["_conv_stem.weight"][:, ::-1])
            return TinySource(weights).graph(normalisation)
        return right(replace(normalisation, **mistake))

    calls = iter([right, wrong])
    monkeypatch.setattr(tiny_source, "graph", lambda normalisation: next(calls)(normalisation))
    with pytest.raises(GateError, match=words) as refusal:
        build(order, quiet)
    assert not publish.versions(entry_of(order))
    report = order.work / "tiny" / "report.html"
    assert str(report) in str(refusal.value)
    assert "Refused" in report.read_text()


def test_shifted_labels_are_refused(tiny_source: TinySource, order: Order, photos: Path, tmp_path: Path) -> None:
    """Labels that are off by one are found out by labelled pictures, and nothing is served."""
    network = tiny_source.load(TINY_NORMALISATION)
    recipe = Preprocessing.of(TINY_RECIPE)
    pictures = read_images(photos).pictures
    best = [int(network.reference(recipe.pixels(picture.read())[None]).argmax()) for picture in pictures]
    rows = [f"{picture.path},{TINY_LABELS[k]}" for picture, k in zip(pictures, best, strict=True) if k < 2]
    assert len(rows) > 5
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    order = replace(order, images=tmp_path)
    assert certificate_of(build(order, quiet))["agreement"]["accuracy"] == 1
    tiny_source.labels = ("background", "cat", "dog")
    with pytest.raises(GateError, match=f"off by one: 0 of {len(rows)} .* with every label one line up"):
        build(replace(order, model="shifted"), quiet)
    assert not publish.versions(Entry(order.repository, "shifted"))


def test_a_failed_gate_leaves_what_is_served(tiny_source: TinySource, order: Order) -> None:
    """A list of labels that does not fit stops a build; the version before is served still."""
    build(order, quiet)
    tiny_source.labels = ("cat", "dog")
    with pytest.raises(GateError, match="2 labels, and the model has 3 classes"):
        build(replace(order, force=True), quiet)
    assert publish.served(entry_of(order), "cpu") == "1"
    assert publish.versions(entry_of(order)) == ["1"]


def test_a_version_can_be_staged(tiny_source: TinySource, order: Order) -> None:
    """A staged version lies there whole, and another is served until it is promoted."""
    build(order, quiet)
    build(replace(order, force=True, promote=False), quiet)
    assert publish.versions(entry_of(order)) == ["1", "2"]
    assert publish.served(entry_of(order), "cpu") == "1"


def test_int8_is_calibrated_on_pictures(tiny_source: TinySource, order: Order, photos: Path) -> None:
    """A folder of pictures is all that INT8 takes; every layer runs in it, and the ranges are kept for next time."""
    order = replace(order, calibration=photos, images=photos, min_agreement=0.5)
    said: list[str] = []
    certificate = certificate_of(build(order, said.append))
    assert certificate["precision"] == "int8"
    assert set(certificate["layers"]) == {"int8"}
    assert certificate["calibration"]["images"] == 24
    assert "measuring the ranges of activations on 24 pictures" in said
    said.clear()
    build(replace(order, force=True), said.append)
    assert "measuring the ranges of activations on 24 pictures" not in said


def test_a_calibration_table_replaces_pictures(
    tiny_source: TinySource, order: Order, photos: Path, tmp_path: Path
) -> None:
    """A table that `calibrate` wrote gives the same engine; one of other weights is refused."""
    calibrate(replace(order, calibration=photos, command="again"), tmp_path / "table.json", quiet)
    table = Ranges.from_json((tmp_path / "table.json").read_bytes())
    assert (table.images, table.command) == (24, "again")
    with_pictures = build(replace(order, calibration=photos, min_agreement=0.5), quiet)
    with_table = build(replace(order, calibration=tmp_path / "table.json", min_agreement=0.5), quiet)
    assert (with_pictures / "model.onnx").read_bytes() == (with_table / "model.onnx").read_bytes()
    (tmp_path / "table.json").write_bytes(replace(table, weights_sha256="6" * 64).to_json())
    with pytest.raises(SourceError, match="other weights"):
        build(replace(order, calibration=tmp_path / "table.json"), quiet)


def test_int8_without_pictures_is_refused(tiny_source: TinySource, order: Order) -> None:
    """Nothing is ever calibrated on noise."""
    with pytest.raises(SourceError, match="INT8 needs pictures"):
        build(replace(order, precision="int8"), quiet)


def test_a_precision_that_the_target_lacks_is_refused(tiny_source: TinySource, order: Order) -> None:
    """Nothing falls back to another precision."""
    with pytest.raises(SourceError, match="openvino builds fp32, int8, bf16, not fp16"):
        build(replace(order, precision="fp16"), quiet)


def test_bf16_needs_a_processor_that_has_it(
    tiny_source: TinySource, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor would compute in FP32 all the same, the build says so."""
    monkeypatch.setattr("build_engines.targets.onnx_on_cpu._has_bf16", lambda: False)
    with pytest.raises(TargetError, match="no bfloat16"):
        build(replace(order, precision="bf16"), quiet)


def test_random_weights_are_never_the_default_model(tiny_source: TinySource, order: Order) -> None:
    """They are for load tests, under a name of their own, and the certificate says what they are."""
    wish = Wish(weights="random")
    with pytest.raises(SourceError, match="never the default model"):
        build(replace(order, wish=wish, model="ensemble_model"), quiet)
    tiny_source.kind, tiny_source.labels = "random", None
    folder = build(replace(order, wish=wish), quiet)
    assert certificate_of(folder)["source"]["weights"] == "random"
    assert (folder / "labels.txt").read_text() == "class 0\nclass 1\nclass 2\n"


def test_classes_need_names(tiny_source: TinySource, order: Order, tmp_path: Path) -> None:
    """A source that does not name its classes needs a file that does; nothing is made up."""
    tiny_source.labels = None
    with pytest.raises(SourceError, match="does not name its 3 classes"):
        build(order, quiet)
    (tmp_path / "names.txt").write_text("one\ntwo\nthree\n")
    folder = build(replace(order, labels=tmp_path / "names.txt"), quiet)
    assert (folder / "labels.txt").read_text() == "one\ntwo\nthree\n"


def test_a_source_without_a_recipe_needs_one(tiny_source: TinySource, order: Order, tmp_path: Path) -> None:
    """Where no library says how pictures are prepared, the user must."""
    tiny_source.recipe = None
    with pytest.raises(SourceError, match="--preprocess"):
        build(order, quiet)
    (tmp_path / "preprocess.json").write_text(json.dumps(TINY_RECIPE))
    folder = build(replace(order, preprocess=tmp_path / "preprocess.json"), quiet)
    assert build(order, quiet) == folder, "the recipe of the version that is served serves the next build"


def test_what_a_person_chose_is_left_alone(tiny_source: TinySource, order: Order) -> None:
    """An automatic build is told of a version that was chosen by hand, and of another model in the place."""
    entry = entry_of(order)
    assert chosen(entry, "cpu", "tiny") is None
    build(order, quiet)
    build(replace(order, force=True), quiet)
    assert chosen(entry, "cpu", "tiny") is None
    assert chosen(entry, "cpu", "efficientnet_lite0") == "version 2, made of tiny, is served"
    publish.pin(entry, publish.rollback(entry, "cpu"))
    assert chosen(entry, "cpu", "tiny") == "version 1 was chosen by hand"
    build(replace(order, force=True), quiet)
    assert chosen(entry, "cpu", "tiny") is None


def test_a_picture_that_is_none_is_named(tiny_source: TinySource, order: Order, tmp_path: Path) -> None:
    """A file that cannot be decoded is not left out without a word."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ImageSetError, match=r"broken\.jpg: not a usable image"):
        build(replace(order, images=tmp_path / "pictures"), quiet)


def test_a_missing_library_is_named(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime, the error is a sentence with the command that helps."""
    monkeypatch.setattr("build_engines.build.metadata.version", _missing)
    with pytest.raises(BuildError, match=r"numpy is not installed: pip install 'tidegate\[build\]'"):
        build(replace(order, source="efficientnet_lite0"), quiet)


def _missing(package: str) -> str:
    raise metadata.PackageNotFoundError(package)


def test_importing_the_package_is_cheap() -> None:
    """Whoever only asks for a build later does not load onnx, numpy or a runtime now; and never the gateway."""
    program = "import build_engines, build_engines.build, build_engines.__main__, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "numpy", "onnxruntime", "openvino", "torch", "gateway", "PIL"} & set(loaded)


def test_ranges_are_those_of_the_pictures(tiny_source: TinySource, order: Order, photos: Path, tmp_path: Path) -> None:
    """Other pictures under the same names are measured anew: nothing kept from before is taken for them."""
    folder = tmp_path / "calibration"
    shutil.copytree(photos, folder)
    order = replace(order, calibration=folder)
    calibrate(order, tmp_path / "first.json", quiet)
    for path in folder.iterdir():
        shutil.copy(next(photos.iterdir()), path)
    calibrate(order, tmp_path / "second.json", quiet)
    assert (tmp_path / "first.json").read_bytes() != (tmp_path / "second.json").read_bytes()
    for path in sorted(folder.iterdir())[9:]:
        path.unlink()
    with pytest.raises(SourceError, match="9 pictures are too few"):
        calibrate(order, tmp_path / "third.json", quiet)


def test_stricter_limits_judge_again(tiny_source: TinySource, order: Order, photos: Path) -> None:
    """A version that passed easier limits, or other pictures, is not up to date for these."""
    order = replace(order, calibration=photos, images=photos, min_agreement=0.1)
    build(order, quiet)
    assert build(replace(order, min_agreement=0.2), quiet).name == "2"
    assert build(replace(order, min_agreement=0.2, part="1/2"), quiet).name == "3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"calibration": Path("nowhere")}, "There is no nowhere"),
        ({"labels": Path("nowhere.txt")}, "There is no nowhere.txt"),
        ({"moderation": Path("nowhere.json")}, "There is no nowhere.json"),
        ({"wish": Wish(head=Path("nowhere.npz"))}, "There is no nowhere.npz"),
        ({"part": "1/2"}, "--part takes a part of --images"),
        ({"calibration_part": "1/2"}, "takes a part of --calibration"),
    ],
)
def test_options_without_an_effect_are_refused(
    tiny_source: TinySource, order: Order, change: dict[str, Any], words: str
) -> None:
    """Nothing that was asked for is left out without a word."""
    with pytest.raises(SourceError, match=words):
        build(replace(order, **change), quiet)


def test_a_source_that_says_the_same_of_everything_is_refused(tiny_source: TinySource, order: Order) -> None:
    """Weights of zeros, or constants that drown every picture: agreement alone would let them pass."""
    for name, value in tiny_source.weights.items():
        tiny_source.weights[name] = np.zeros_like(value) if name.startswith("_fc.weight") else value
    with pytest.raises(GateError, match="alike to every picture"):
        build(order, quiet)


def test_a_build_by_hand_is_not_undone(tiny_source: TinySource, order: Order) -> None:
    """What a person built otherwise than `make up` would is left alone, even when it is not whole any more."""
    folder = build(replace(order, pin=True), quiet)
    assert chosen(entry_of(order), "cpu", "tiny") == "version 1 was chosen by hand"
    (folder / "model.onnx").write_bytes(b"damaged")
    assert chosen(entry_of(order), "cpu", "tiny") == "version 1 was chosen by hand"


def parameter(repository: Path, model: str, key: str) -> str | None:
    """What the model that callers name tells of itself."""
    return parameter_of((repository / model / "configs" / "cpu.pbtxt").read_text(), key)


def test_classes_can_be_declared_to_moderate(tiny_source: TinySource, order: Order, tmp_path: Path) -> None:
    """A file says which labels are which category: callers are told, by that version and by no other."""
    path = tmp_path / "moderation.json"
    path.write_text('{"fish": {"category": "violence", "threshold": 0.25}}')
    build(order, quiet)
    assert parameter(order.repository, "tiny", "moderation") is None
    assert build(replace(order, moderation=path), quiet).name == "2"
    declared = parameter(order.repository, "tiny", "moderation")
    assert declared is not None
    assert json.loads(declared) == {"fish": {"category": "violence", "threshold": 0.25}}
    publish.rollback(entry_of(order), "cpu")
    assert parameter(order.repository, "tiny", "moderation") is None
    publish.promote(entry_of(order), "2")
    assert parameter(order.repository, "tiny", "moderation") == declared
    path.write_text('{"bird": {"category": "violence", "threshold": 0.25}}')
    with pytest.raises(SourceError, match="names the label 'bird', and the model has cat, dog, fish"):
        build(replace(order, moderation=path), quiet)
    assert publish.versions(entry_of(order)) == ["1", "2"]


@pytest.fixture
def features(order: Order) -> Order:
    """Features of EfficientNet-Lite0."""
    return replace(order, source="efficientnet_lite0", model="lite0_features", wish=Wish(task="embed"))


def test_features_are_in_fp32_unless_int8_is_asked_for(features: Order) -> None:
    """A table ships that would make INT8 of them, and it is used only for whoever wants it: neighbours change."""
    folder = build(features, quiet)
    certificate = certificate_of(folder)
    assert (certificate["task"], certificate["precision"], certificate["layers"]) == ("embed", "fp32", {"fp32": 49})
    assert certificate["agreement"]["cosine"] > 0.9999
    assert certificate["agreement"]["top1"] is None
    assert not (folder / "labels.txt").exists()
    assert parameter(features.repository, "lite0_features", "normalised") == "l2"
    certificate = certificate_of(build(replace(features, precision="int8"), quiet))
    assert (certificate["precision"], certificate["layers"]) == ("int8", {"int8": 49})
    assert certificate["calibration"]["images"] == 250
    assert 0.8 < certificate["agreement"]["cosine"] < 0.99


def test_a_head_makes_a_classifier_of_features(order: Order, tmp_path: Path) -> None:
    """A linear layer that somebody trained becomes a model of its own, with the hash of its file in the certificate."""
    random = np.random.default_rng(0)
    head = {"weight": random.normal(0, 3, (3, 1280)), "bias": np.zeros(3), "labels": np.array(["a", "b", "c"])}
    with (tmp_path / "head.npz").open("wb") as file:
        np.savez(file, normalised=True, **head)
    wish = Wish(head=tmp_path / "head.npz")
    order = replace(order, source="efficientnet_lite0", model="my_photos", wish=wish)
    folder = build(order, quiet)
    certificate = certificate_of(folder)
    assert folder.parent.name == "my_photos_classifier"
    assert certificate["source"]["head"]["sha256"] == hashlib.sha256((tmp_path / "head.npz").read_bytes()).hexdigest()
    assert (certificate["task"], certificate["precision"]) == ("classify", "fp32")
    assert (folder / "labels.txt").read_text() == "a\nb\nc\n"
    assert parameter(order.repository, "my_photos", "normalised") is None
    assert build(order, quiet) == folder


def test_features_moderate_nothing(features: Order, tmp_path: Path) -> None:
    """A file that would have no effect is an error."""
    (tmp_path / "m.json").write_text('{"a": {"category": "hate", "threshold": 0.5}}')
    with pytest.raises(SourceError, match="Features moderate nothing"):
        build(replace(features, moderation=tmp_path / "m.json"), quiet)


def test_features_have_no_labels(features: Order, tmp_path: Path) -> None:
    """A list that would have no effect is an error."""
    (tmp_path / "labels.txt").write_text("a\n")
    with pytest.raises(SourceError, match="Features have no labels"):
        build(replace(features, labels=tmp_path / "labels.txt"), quiet)


@pytest.mark.parametrize(
    ("model", "task", "words"),
    [
        ("ensemble_model", "embed", "ensemble_model is the default model for classes"),
        ("embedding_ensemble", "classify", "embedding_ensemble is the default model for features"),
    ],
)
def test_a_default_model_is_for_its_own_task(features: Order, model: str, task: str, words: str) -> None:
    """Features never take the place of the classifier that callers get without asking, nor the other way round."""
    with pytest.raises(SourceError, match=words):
        build(replace(features, model=model, wish=Wish(task=task)), quiet)
    assert not features.repository.exists()
