from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.__main__ import main


def test_the_command_builds_and_then_has_nothing_to_do(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first call builds, the second says that all is up to date; each in one line, with exit code 0."""
    arguments = ["efficientnet_lite0", "--repository", str(entry.parent)]
    assert main(arguments) == 0
    assert main(arguments) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "built version 1" in first
    assert "version 1 is up to date" in second


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user can mend is said in a line on standard error, without a traceback."""
    assert main(["efficientnet_lite0", "--repository", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "--repository" in captured.err


def test_an_unknown_source_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """A source that there is not is refused with those that there are."""
    with pytest.raises(SystemExit, match="2"):
        main(["resnet1"])
    assert "efficientnet_lite0" in capsys.readouterr().err
