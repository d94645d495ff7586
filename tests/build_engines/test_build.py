from __future__ import annotations

import builtins
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import build_engines
from build_engines.build import build
from build_engines.errors import BuildError, CheckpointError, GateError, SourceError
from build_engines.preprocessing import Normalisation
from build_engines.serving import onnx_classifier
from build_engines.sources import SOURCES, Source
from tests.build_engines.conftest import CLASSIFIER


@pytest.fixture
def source(tiny: bytes) -> Source:
    """The default source, but with the tiny model as its graph."""

    def graph(weights: Mapping[str, Any], normalisation: Normalisation) -> onnx.ModelProto:
        assert len(weights) == 296
        assert normalisation.size == 224
        return onnx.load_from_string(tiny)

    return replace(SOURCES["efficientnet_lite0"], graph=graph)


@pytest.fixture
def tiny_entry(entry: Path) -> Path:
    """A repository's classifier with the tiny model's labels."""
    (entry / "labels.txt").write_text("cat\ndog\nfish\n")
    return entry


def test_the_default_model_is_built_into_a_repository(entry: Path) -> None:
    """One call makes a version that Triton can load, with a certificate that says what it was made of."""
    said: list[str] = []
    folder = build_engines.build_default(entry.parent, say=said.append)
    assert folder == entry / "1"
    assert (folder / "model.py").read_bytes() == Path(onnx_classifier.__file__).read_bytes()
    certificate = json.loads((entry / "certificate.json").read_text())
    assert certificate["source"]["sha256"] == SOURCES["efficientnet_lite0"].sha256
    assert certificate["precision"] == "fp32"
    assert certificate["command"] == "python -m build_engines efficientnet_lite0"
    assert len(said) == 1
    assert "built version 1 from efficientnet_lite0" in said[0]
    assert str(folder) in said[0]


def test_a_second_build_does_nothing(source: Source, tiny_entry: Path) -> None:
    """When nothing has changed, nothing is written, and the line says so."""
    first = build(source, tiny_entry)
    written = (tiny_entry / "certificate.json").stat().st_mtime_ns
    said: list[str] = []
    assert build(source, tiny_entry, say=said.append) == first
    assert (tiny_entry / "certificate.json").stat().st_mtime_ns == written
    assert said == [f"classifier: version 1 is up to date in {first}"]


def test_force_builds_again(source: Source, tiny_entry: Path) -> None:
    """`force` makes a new version of the same things."""
    first = build(source, tiny_entry)
    second = build(source, tiny_entry, force=True)
    assert (first.name, second.name) == ("1", "2")
    assert (first / "model.onnx").read_bytes() == (second / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("preprocess.json", b"128.0", b"127.5"),
        ("labels.txt", b"cat", b"cow"),
        ("certificate.json", b"fp32", b'fp32"'),
        ("1/model.onnx", b"tiny", b"tidy"),
        ("1/model.py", b"openvino", b"onnx"),
    ],
)
def test_a_change_builds_again(source: Source, tiny_entry: Path, name: str, old: bytes, new: bytes) -> None:
    """Another preprocessing, other labels or a damaged version: the model is built anew."""
    build(source, tiny_entry)
    changed = tiny_entry / name
    content = changed.read_bytes()
    assert old in content
    changed.write_bytes(content.replace(old, new))
    assert build(source, tiny_entry).name == "2"


def test_another_builder_builds_again(
    source: Source, tiny_entry: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A change of the builder's own code makes what it built out of date."""
    build(source, tiny_entry)
    package = Path(build_engines.__file__).parent
    copy = tmp_path / "builder"
    shutil.copytree(package, copy)
    with (copy / "efficientnet_lite.py").open("a") as file:
        file.write("# changed\n")
    monkeypatch.setattr("build_engines.build._HERE", copy)
    assert build(source, tiny_entry).name == "2"


def test_a_failed_gate_leaves_the_version_before(source: Source, tiny_entry: Path) -> None:
    """Labels that do not fit stop a build; what was published stays."""
    build(source, tiny_entry)
    (tiny_entry / "labels.txt").write_text("cat\ndog\n")
    with pytest.raises(GateError, match="2 labels, and the model has 3 classes"):
        build(source, tiny_entry)
    assert sorted(path.name for path in tiny_entry.iterdir() if path.is_dir()) == ["1"]
    (tiny_entry / "labels.txt").write_text("cat\ndog\nfish\n")
    assert build(source, tiny_entry).name == "1"


def test_a_damaged_checkpoint_publishes_nothing(
    source: Source, tiny_entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader refuses never becomes a version."""

    def refuse(_: bytes) -> None:
        raise CheckpointError("The checkpoint is damaged.")

    monkeypatch.setattr("build_engines.checkpoint.read_checkpoint", refuse)
    with pytest.raises(CheckpointError):
        build(source, tiny_entry)
    assert sorted(path.name for path in tiny_entry.iterdir()) == ["labels.txt", "preprocess.json"]


def test_another_colour_order_is_refused(source: Source, tiny_entry: Path) -> None:
    """Weights for RGB are not served with BGR pixels."""
    preprocess = (CLASSIFIER / "preprocess.json").read_text().replace("RGB", "BGR")
    (tiny_entry / "preprocess.json").write_text(preprocess)
    with pytest.raises(SourceError, match="gives BGR images, and efficientnet_lite0 needs RGB"):
        build(source, tiny_entry)


def test_a_folder_that_is_no_entry_is_named(source: Source, tmp_path: Path) -> None:
    """Started in the wrong folder, the builder says which file it misses and what to do."""
    with pytest.raises(SourceError, match=r"preprocess\.json cannot be read .*--repository"):
        build(source, tmp_path / "nowhere")


def test_a_missing_library_is_named(source: Source, tiny_entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime, the error is a sentence with the command that helps."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BuildError, match=r"onnxruntime is not installed: pip install 'tidegate\[build\]'"):
        build(source, tiny_entry)


def test_importing_the_package_is_cheap() -> None:
    """Whoever only asks for a build later does not load onnx, numpy or a runtime now; and never the gateway."""
    program = "import build_engines, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "numpy", "onnxruntime", "openvino", "torch", "gateway"} & set(loaded)
