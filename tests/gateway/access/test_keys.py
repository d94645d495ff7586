"""The file of keys: made, read, changed, and broken."""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gateway.access import keys
from gateway.access.keys import Keys, KeysError, add_key, read_keys, remove_key


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a file of keys may be."""
    return tmp_path / "keys.json"


def test_a_key_finds_its_entry(file: Path) -> None:
    """The key that was returned, and no other; the file holds neither it nor its secret."""
    entry, key = add_key(file, "alice", models=("flowers",))
    _, other = add_key(file, "bob")
    found = Keys(file).find(key)
    assert found == entry
    assert (entry.name, entry.models) == ("alice", ("flowers",))
    assert key != other
    for secret in (key, key.split("_", 2)[2]):
        assert secret not in file.read_text()


@pytest.mark.parametrize("content", ["{}", '{"version": 1}', '{"keys": []}', "[]", ""])
def test_a_file_that_does_not_say_what_it_is(file: Path, content: str) -> None:
    """Half a file is no list without keys."""
    file.write_text(content)
    with pytest.raises(keys.KeysError, match="is not a file of keys"):
        keys.read_keys(file)


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    """It could hold up everybody."""
    os.mkfifo(file)
    with pytest.raises(keys.KeysError, match="is not a file"):
        keys.read_keys(file)


def test_keys_are_long_and_each_its_own(file: Path) -> None:
    """256 bits of secret, and an id that leads to the entry."""
    made = [keys.make_key(f"k{i}") for i in range(50)]
    assert len({key for _, key in made}) == len({entry.salt for entry, _ in made}) == 50
    for entry, key in made:
        assert key.startswith(f"tg_{entry.id}_")
        assert len(key) == 3 + 12 + 1 + 43


def test_anything_else_is_not_known(file: Path) -> None:
    """A wrong secret, another's secret, an unknown id, and what is no key at all."""
    _, key = add_key(file, "alice")
    _, other = add_key(file, "bob")
    known = Keys(file)
    head, secret = key[:16], key[16:]
    wrong = [
        head + ("B" if secret[0] == "A" else "A") + secret[1:],
        head + secret[:-1] + ("B" if secret[-1] == "A" else "A"),
        head + other[16:],
        "tg_000000000000_" + secret,
        key[:-1],
        key + "A",
        key.upper(),
        key + "\n",
        "é" * 59,
        "",
    ]
    assert [known.find(each) for each in wrong] == [None] * len(wrong)


def test_an_unknown_id_takes_the_same_way_as_a_wrong_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hash and one comparison in constant time, of the same lengths."""
    _, key = add_key(file, "alice")
    known = Keys(file)
    compared: list[tuple[int, int]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    for wrong in (key[:16] + 43 * "A", "tg_000000000000_" + key[16:]):
        assert known.find(wrong) is None
    assert compared == [(64, 64), (64, 64)]


def test_expiry(file: Path) -> None:
    """A key has expired from its moment on; the clock of the wall counts."""
    when = datetime(2031, 1, 31, tzinfo=timezone.utc)
    entry, key = add_key(file, "alice", expires=when)
    clock = Clock()
    known = Keys(file, now=clock)
    clock.seconds = when.timestamp() - 1
    assert not known.has_expired(entry)
    clock.seconds += 1
    assert known.has_expired(entry)
    assert known.find(key) == entry  # so that its owner can be told


def test_a_change_is_seen_within_a_second(file: Path) -> None:
    """Keys that were added or removed count without a restart, and the file is looked at once a second."""
    _, alice = add_key(file, "alice")
    clock = Clock()
    known = Keys(file, clock=clock)
    _, bob = add_key(file, "bob")
    remove_key(file, "alice")
    clock.seconds += 0.9
    assert known.find(bob) is None
    assert known.find(alice) is not None
    clock.seconds += 0.1
    assert known.find(bob) is not None
    assert known.find(alice) is None


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes exchanges the files of a secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    _, first = add_key(tmp_path / "one" / "keys.json", "alice")
    _, second = add_key(tmp_path / "two" / "keys.json", "alice")
    link = tmp_path / "data"
    link.symlink_to("one")
    clock = Clock()
    known = Keys(link / "keys.json", clock=clock)
    assert known.find(first) is not None
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)
    clock.seconds += 1
    assert known.find(first) is None
    assert known.find(second) is not None


@pytest.mark.parametrize("damage", ["", "{", '{"version": 2, "keys": []}', '{"keys": [{"name": "x"}]}', None])
def test_a_broken_file_leaves_the_keys_that_were(
    file: Path, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log for each state of the file, without its content; a good file counts again."""
    _, key = add_key(file, "alice")
    good = file.read_text()
    clock = Clock()
    known = Keys(file, clock=clock)
    if damage is None:
        file.unlink()
    else:
        file.write_text(damage)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.seconds += 1
            assert known.find(key) is not None
    assert len(caplog.records) == 1
    file.write_text(good.replace("alice", "alison"))
    clock.seconds += 1
    entry = known.find(key)
    assert entry is not None
    assert entry.name == "alison"


def test_nothing_to_begin_with_is_an_error(file: Path) -> None:
    """A gateway that should ask for keys, and has none to compare with, does not start."""
    with pytest.raises(KeysError, match=r"No such file.*tidegate keys add"):
        Keys(file)
    file.write_text('{"version": 1, "keys": [{"name": "secret-looking"}]}')
    with pytest.raises(KeysError, match=r"keys\.0\.id") as error:
        Keys(file)
    assert "secret-looking" not in str(error.value)


def test_names_and_ids_are_there_once(file: Path) -> None:
    """A second key of a name is refused, by the command and in the file."""
    add_key(file, "alice")
    with pytest.raises(KeysError, match="There is a key named alice"):
        add_key(file, "alice")
    content = json.loads(file.read_text())
    content["keys"] *= 2
    file.write_text(json.dumps(content))
    with pytest.raises(KeysError, match="two keys have the same name"):
        read_keys(file)


@pytest.mark.parametrize("name", ["", " ", "-x", "a b", "a\n", "é", "x" * 65])
def test_a_name_is_plain(file: Path, name: str) -> None:
    """It goes into logs."""
    with pytest.raises(KeysError, match="name has 1 to 64"):
        add_key(file, name)
    assert not file.exists()


def test_the_file_is_exchanged_at_once_and_for_its_owner_only(file: Path) -> None:
    """Mode 0600 when it is new, a mode that somebody gave it stays; nothing is left beside it."""
    add_key(file, "alice")
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_ino
    file.chmod(0o640)
    add_key(file, "bob")
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.stat().st_ino != before
    assert os.listdir(file.parent) == [file.name]


def test_a_failure_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No half of a file, and no other file."""
    add_key(file, "alice")
    before = file.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(KeysError, match="No space left"):
        add_key(file, "bob")
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_link_is_kept(tmp_path: Path) -> None:
    """The file behind it is exchanged."""
    (tmp_path / "real.json").write_text('{"version": 1, "keys": []}')
    link = tmp_path / "keys.json"
    link.symlink_to("real.json")
    add_key(link, "alice")
    assert link.is_symlink()
    assert [entry.name for entry in read_keys(tmp_path / "real.json").keys] == ["alice"]


def test_nobody_loses_a_key_to_somebody_else(file: Path) -> None:
    """Many who add at the same time: all keys are there."""
    threads = [threading.Thread(target=add_key, args=(file, f"k{i}")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.name for entry in read_keys(file).keys} == {f"k{i}" for i in range(12)}


def test_remove(file: Path) -> None:
    """The others stay; a name that is not there is an error, and so is no file."""
    with pytest.raises(KeysError):
        remove_key(file, "alice")
    assert not file.exists()
    for name in ("alice", "bob"):
        add_key(file, name, expires=datetime.now(timezone.utc) + timedelta(days=1))
    remove_key(file, "alice")
    assert [entry.name for entry in read_keys(file).keys] == ["bob"]
    with pytest.raises(KeysError, match="no key named alice"):
        remove_key(file, "alice")
