from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_engines.text.serving.engine import UnfitError, load

FILES = ("model.py", "engine.py", "words.py", "model.onnx", "labels.txt", "vocabulary.txt", "check.json")


@pytest.fixture
def version(built: Path, tmp_path: Path) -> Path:
    """A version's folder that a test may change."""
    shutil.copytree(built / "text_classifier" / "1", tmp_path / "1")
    return tmp_path / "1"


def rewrite(path: Path, change: Callable[[Any], object]) -> None:
    """Changes a JSON file, and the certificate's hash of it, as if it had been published so."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    if path.name != "certificate.json":
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        rewrite(path.with_name("certificate.json"), lambda each: each["files"].update({path.name: sha256}))


def test_a_published_version_loads(version: Path) -> None:
    """It is whole, and answers here as it did where it was built."""
    engine = load(version)
    assert (engine.output, engine.width) == ("CLASSIFICATION", 4)
    assert set(json.loads((version / "certificate.json").read_bytes())["files"]) == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_refused(version: Path, name: str) -> None:
    """Another tokeniser, vocabulary, list of labels or network than the certified one is not served."""
    with (version / name).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UnfitError, match=rf"{name} is not the file that was published: build the model again"):
        load(version)
    (version / name).unlink()
    with pytest.raises(UnfitError, match=rf"{name} is not the file that was published"):
        load(version)


def test_another_unicode_is_refused(version: Path) -> None:
    """A Python with other tables of characters might find other words in a text."""
    rewrite(version / "certificate.json", lambda each: each["vectoriser"].update(unicode="9.0.0"))
    with pytest.raises(UnfitError, match=r"made by a Python with Unicode 9\.0\.0, and this one has .* build the model"):
        load(version)


def test_a_runtime_that_computes_otherwise_is_refused(version: Path) -> None:
    """Not its number decides, but its answers to the texts of `check.json`."""
    rewrite(version / "certificate.json", lambda each: each["versions"].update(onnxruntime="1.0.0"))
    load(version)
    rewrite(version / "check.json", lambda each: each["rows"][0].reverse())
    with pytest.raises(UnfitError, match=r"gives other answers \(.* apart\) than 1\.0\.0"):
        load(version)


def test_a_vocabulary_of_another_model_is_refused(version: Path) -> None:
    """The share of known words is checked, too."""
    rewrite(version / "check.json", lambda each: each["known_words"][0].__setitem__(0, 0.5))
    with pytest.raises(UnfitError, match="gives other answers"):
        load(version)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [("certificate.json", b"{", r"certificate\.json cannot be read"), ("model.onnx", b"x", "cannot run .*model.onnx")],
)
def test_a_broken_version_is_refused(version: Path, name: str, content: bytes, sentence: str) -> None:
    """A file cut short, or an operator that this onnxruntime does not know, is named."""
    (version / name).write_bytes(content)
    if name != "certificate.json":
        sha256 = hashlib.sha256(content).hexdigest()
        rewrite(version / "certificate.json", lambda each: each["files"].update({name: sha256}))
    with pytest.raises(UnfitError, match=sentence):
        load(version)
