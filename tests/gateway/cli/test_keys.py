"""`tidegate keys` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.access.keys import Keys
from tests.servers import ROOT


def keys(*arguments: str, file: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"TIDEGATE_API_KEYS_FILE": str(file)} if file else {})}
    command = [sys.executable, "-m", "gateway.cli", "keys", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_add_list_remove(tmp_path: Path) -> None:
    """A key is printed alone and once; the list has all but secrets; what was removed is gone."""
    file = tmp_path / "keys.json"
    made = keys("add", "alice", "--expires", "2031-01-31T18:00Z", "--models", "flowers", "birds", file=file)
    assert made.returncode == 0, made.stderr
    assert "not shown again" in made.stderr
    key = made.stdout.strip()
    entry = Keys(file).find(key)
    assert entry is not None
    assert (entry.name, entry.models) == ("alice", ("flowers", "birds"))
    assert keys("add", "old", "--expires", "2020-01-31", "--file", str(file)).returncode == 0
    listed = keys("list", file=file).stdout.splitlines()
    assert listed[0].split() == ["NAME", "ID", "CREATED", "EXPIRES", "MODELS"]
    assert listed[1].split()[0] == "alice"
    assert listed[1].split()[3:] == ["2031-01-31T18:00+00:00", "flowers,", "birds"]
    assert listed[2].endswith("2020-01-31T00:00+00:00 (expired)  all")
    assert key[16:] not in "".join(listed)
    assert keys("remove", "alice", file=file).returncode == 0
    assert Keys(file).find(key) is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "a b"], 1, "name has 1 to 64"),
        (["add", "alice", "--expires", "soon"], 2, "is not a date such as 2027-01-31"),
        (["remove", "alice"], 1, "No such file"),
        (["list"], 1, "tidegate keys add"),
    ],
)
def test_what_goes_wrong_is_one_line(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    """A sentence and an exit code, no traceback, and no key."""
    done = keys(*arguments, file=tmp_path / "keys.json")
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_must_be_named() -> None:
    """By the variable or the option."""
    done = keys("list")
    assert done.returncode == 1
    assert "TIDEGATE_API_KEYS_FILE" in done.stderr
