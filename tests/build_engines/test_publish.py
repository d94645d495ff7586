from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from build_engines.errors import PublishError
from build_engines.publish import publish, published

FILES = {"model.onnx": b"graph", "model.py": b"program"}


def names(entry: Path) -> list[str]:
    """What is in the folder, hidden files too."""
    return sorted(path.name for path in entry.iterdir())


def test_a_version_is_complete_and_certified(tmp_path: Path) -> None:
    """The first version is number 1, holds every file, and the certificate has their hashes."""
    folder = publish(tmp_path, FILES, {"precision": "fp32"})
    assert folder == tmp_path / "1"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert (certificate["schema"], certificate["version"], certificate["precision"]) == (1, "1", "fp32")
    assert set(certificate["files"]) == set(FILES)
    assert published(tmp_path) == (folder, certificate)


def test_another_user_can_read_a_version(tmp_path: Path) -> None:
    """A server that runs as somebody else may enter the folder."""
    assert stat.S_IMODE(publish(tmp_path, FILES, {}).stat().st_mode) == 0o755


def test_each_version_has_the_next_number_and_the_last_two_stay(tmp_path: Path) -> None:
    """Versions count up; a server that still reads the one before does not lose it."""
    (tmp_path / "configs").mkdir()
    assert [publish(tmp_path, FILES, {}).name for _ in range(3)] == ["1", "2", "3"]
    assert names(tmp_path) == ["2", "3", "certificate.json", "configs"]


@pytest.mark.parametrize("step", ["write_bytes", "rename"])
def test_a_failure_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When a file cannot be written or the folder not be moved, nothing has changed and nothing is left behind."""
    before = publish(tmp_path, FILES, {})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"write_bytes": (Path, "write_bytes"), "rename": (os, "rename")}[step], fail)
    with pytest.raises(PublishError, match="No space left on device"):
        publish(tmp_path, {"model.onnx": b"other"}, {})
    monkeypatch.undo()
    assert names(tmp_path) == ["1", "certificate.json"]
    found = published(tmp_path)
    assert found is not None
    assert found[0] == before


def test_an_interrupt_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of writing is no half version."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, FILES, {})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda entry: (entry / "1" / "model.onnx").write_bytes(b"changed"), id="changed file"),
        pytest.param(lambda entry: (entry / "1" / "model.py").unlink(), id="missing file"),
        pytest.param(lambda entry: (entry / "certificate.json").unlink(), id="missing certificate"),
        pytest.param(lambda entry: (entry / "certificate.json").write_text("{"), id="cut certificate"),
        pytest.param(lambda entry: (entry / "certificate.json").write_text("[]"), id="other certificate"),
        pytest.param(lambda entry: (entry / "certificate.json").write_text('{"files": {}}'), id="no version"),
        pytest.param(lambda entry: (entry / "2").mkdir(), id="newer version"),
    ],
)
def test_what_is_not_whole_is_not_published(tmp_path: Path, damage: object) -> None:
    """A changed file, a damaged certificate or a version that it does not speak of: not a published model."""
    publish(tmp_path, FILES, {})
    assert callable(damage)
    damage(tmp_path)
    assert published(tmp_path) is None
