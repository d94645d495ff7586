from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.errors import PublishError
from build_engines.stages import Stages


def test_a_result_is_made_once(tmp_path: Path) -> None:
    """The same step for the same things is done once and announced once; another key is another step."""
    said: list[str] = []
    stages = Stages(tmp_path / "work", said.append)
    assert stages.result("ranges", ["a"], "measuring", lambda: b"first") == b"first"
    assert stages.result("ranges", ["a"], "measuring", lambda: b"second") == b"first"
    assert Stages(tmp_path / "work").result("ranges", b"b", "again", lambda: b"third") == b"third"
    assert said == ["measuring"]


def test_an_interrupted_step_leaves_nothing(tmp_path: Path) -> None:
    """What was not finished is done again: a half result is never taken for a whole one."""
    stages = Stages(tmp_path, lambda line: None)

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stages.result("plan", b"key", "building", interrupted)
    assert list(tmp_path.iterdir()) == []
    assert stages.result("plan", b"key", "building", lambda: b"whole") == b"whole"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says which folder, and the option that names another."""
    (tmp_path / "file").touch()
    with pytest.raises(PublishError, match=r"file/work.*--work"):
        Stages(tmp_path / "file" / "work", lambda line: None).result("x", b"", "", lambda: b"")
