"""`tidegate embed`, mostly as a process; most of what is below it is tested in tests/tidegate."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gateway.cli import main
from gateway.cli.embed import SUFFIXES
from gateway.settings import SettingsError, load_settings
from tests.pictures import encode, noise
from tests.servers import ROOT
from tests.tidegate.stand_in import BAD, Reply, Request, StandIn, features, serving
from tidegate.features import SUFFIXES as WRITTEN


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving(StandIn()) as server:
        yield server


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `photos` here, with a hundred small files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_API_KEY", raising=False)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:03}.jpg").write_bytes(b"photo %d" % number)
    return folder


@contextmanager
def process(*arguments: str, cwd: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command, killed at the end if it has not ended."""
    command = [sys.executable, "-m", "gateway.cli", "embed", *arguments]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    options.setdefault("stderr", subprocess.PIPE)
    started = subprocess.Popen(
        command, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, **options
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def rows(out: Path) -> dict[str, str]:
    """The error of each path, empty if there is none; every row without an error has its own file's features."""
    with np.load(out) as file:
        found = dict(zip(file["paths"].tolist(), file["errors"].tolist(), strict=True))
        assert len(found) == len(file["paths"])
        for path, error, embedding in zip(file["paths"].tolist(), file["errors"], file["embeddings"], strict=True):
            if not error:
                assert_array_equal(embedding, features((out.parent / path).read_bytes()), path)
    return found


def test_killed_half_way_and_resumed(stand_in: StandIn, photos: Path) -> None:
    """kill -9 in the middle of a run: --resume sends what had no answer, and each input has one row."""
    stand_in.hold_from = 12
    arguments = ["photos", "--out", "out.npz", "--url", stand_in.url, "--batch", "5", "--concurrency", "2"]
    with process(*arguments, cwd=photos.parent) as first:
        assert stand_in.held.wait(60)
        first.kill()
        first.wait(30)
    assert not (photos.parent / "out.npz").exists()
    stand_in.hold_from = None
    stand_in.go.set()
    answered = sum(stand_in.images.values())
    assert answered >= 50
    assert main(["embed", *arguments, "--resume"]) == 0
    found = rows(photos.parent / "out.npz")
    assert list(found) == [f"photos/{number:03}.jpg" for number in range(100)]
    assert not any(found.values())
    assert sorted(os.listdir(photos.parent)) == ["out.npz", "photos"]


def test_what_was_committed_is_not_sent_again(stand_in: StandIn, photos: Path) -> None:
    """Ctrl-C keeps every answer that came: the sentence says how to go on, and what comes then is only the rest."""
    stand_in.hold_from = 11
    arguments = ["photos", "--out", "out.npz", "--url", stand_in.url, "--batch", "5", "--concurrency", "1"]
    with process(*arguments, cwd=photos.parent) as first:
        assert stand_in.held.wait(60)
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=30)
    assert first.returncode == 130
    assert told.endswith(
        "tidegate: interrupted. What was answered is kept: the same command with --resume goes on from there.\n"
    )
    stand_in.hold_from = None
    stand_in.go.set()
    stand_in.requests.clear()
    assert main(["embed", *arguments, "--resume"]) == 0
    assert len(rows(photos.parent / "out.npz")) == 100
    sent = [file for request in stand_in.requests for file in request.files]
    assert sorted(sent) == [b"photo %d" % number for number in range(50, 100)]


def test_ctrl_c_while_waiting_for_a_list(stand_in: StandIn, photos: Path) -> None:
    """Nobody waits for the next line of standard input, nor at the end of the process."""
    reading, writing = os.pipe()
    arguments = ["-", "--out", "out.npz", "--url", stand_in.url, "--batch", "1"]
    with process(*arguments, cwd=photos.parent, stdin=reading) as run:
        os.write(writing, b"".join(b"photos/%03d.jpg\n" % (number % 100) for number in range(300)))
        seen = threading.Event()
        stand_in.instead = lambda request: seen.set()
        assert seen.wait(60)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)
        assert run.returncode == 130
    os.close(reading)
    os.close(writing)


def test_busy_for_a_moment(stand_in: StandIn, photos: Path) -> None:
    """503 with Retry-After, then 200: nothing is sent before the time, and all is well in the end."""

    def instead(request: Request) -> Reply | None:
        return Reply(503, "overloaded", {"Retry-After": "1"}) if len(stand_in.requests) == 1 else None

    stand_in.instead = instead
    arguments = ["embed", "photos", "--out", "out.npz", "--url", stand_in.url, "--concurrency", "1", "--batch", "60"]
    assert main(arguments) == 0
    first, second, *_ = stand_in.requests
    assert second.at - first.at >= 1
    assert not any(rows(photos.parent / "out.npz").values())


def test_many_files_and_few_descriptors(stand_in: StandIn, tmp_path: Path) -> None:
    """600 files, 64 requests at once, `ulimit -n 256`."""
    (tmp_path / "photos").mkdir()
    for number in range(600):
        (tmp_path / "photos" / f"{number:03}").write_bytes(b"%d" % number)
    arguments = ["photos", "--out", "out.npz", "--url", stand_in.url, "--batch", "2", "--concurrency", "64"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    with process(*arguments, cwd=tmp_path, preexec_fn=limit) as run:
        told, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "features of 600 of 600 files, 4 values each, by embedder version 1" in told
    assert len(rows(tmp_path / "out.npz")) == 600


@pytest.mark.parametrize(
    ("out", "room", "where"),
    [
        ("out.npz", 100_000, "out.npz.spool"),
        ("out.npz", 400_100, "out.npz"),
        ("out.parquet", 400_100, "out.parquet"),
    ],
)
def test_a_full_disk(stand_in: StandIn, photos: Path, out: str, room: int, where: str) -> None:
    """There is no room for 400,000 bytes of features, or only none for the output: one sentence, no half file, and
    with more room --resume is right."""
    pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError) if out.endswith("parquet") else None
    stand_in.dim = 1000
    arguments = ["photos", "--out", out, "--url", stand_in.url, "--batch", "5", "--concurrency", "8", "--quiet"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    with process(*arguments, cwd=photos.parent, preexec_fn=limit) as run:
        told, said = run.communicate(timeout=60)
    assert (run.returncode, told) == (1, "")
    sentence = f"tidegate: {where} cannot be written: it would be larger than is allowed, so raise `ulimit -f`."
    assert said.startswith(sentence)
    assert said.count("\n") == 1
    assert ("--resume goes on" in said) is (photos.parent / f"{out}.spool").exists()
    assert not (photos.parent / out).exists()
    assert main(["embed", *arguments, "--resume"]) == 0
    expected = np.array([features(b"photo %d" % number, 1000) for number in range(100)])
    if pq is not None:
        found = pq.read_table(out)["embedding"].combine_chunks().flatten().to_numpy().reshape(100, -1)
        assert_array_equal(found, expected)
        return
    with np.load(out) as file:
        assert_array_equal(file["embeddings"], expected)


def test_a_gateway_that_asks_for_years(stand_in: StandIn, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not waited for: the sentence says how long it asked for, and how to go on."""
    stand_in.instead = lambda request: (
        Reply(429, "rate_limited", {"Retry-After": "99999999"}) if len(stand_in.requests) > 10 else None
    )
    arguments = ["embed", "photos", "--out", "out.npz", "--url", stand_in.url, "--batch", "5", "--concurrency", "1"]
    assert main([*arguments, "--quiet"]) == 1
    assert capsys.readouterr().err == (
        f"tidegate: The gateway at {stand_in.url} asks to be left alone for 27,777 h 46 min (rate_limited), and a run "
        "waits for 5 min 0 s at most: start it again then. What was answered is kept: the same command with --resume "
        "goes on from there.\n"
    )
    assert not (photos.parent / "out.npz").exists()


def test_two_versions_that_share_the_work(stand_in: StandIn, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run ends, and what its sentence says to do helps."""

    def by_turns(request: Request) -> None:
        stand_in.version = request.fields.get("version") or str(1 + len(stand_in.requests) // 6 % 2)

    stand_in.instead = by_turns
    arguments = ["embed", "photos", "--out", "out.npz", "--url", stand_in.url, "--batch", "5", "--concurrency", "1"]
    assert main(arguments) == 1
    assert capsys.readouterr().err.endswith(
        "what two models give does not mix. --resume with --model-version 1 pins the one from before, and goes on with "
        "it; --overwrite begins anew.\n"
    )
    assert main([*arguments, "--resume", "--model-version", "1"]) == 0
    assert not any(rows(photos.parent / "out.npz").values())


def test_any_mix_of_inputs(stand_in: StandIn, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files, folders, patterns and lists in one run; each input one row, and the summary says what went wrong."""
    (photos / "BIG.JPG").write_bytes(b"a photo")
    (photos / ".hidden").write_bytes(b"x")
    (photos / "broken").symlink_to("nowhere")
    (photos / "empty").touch()
    (photos / "notes.txt").write_bytes(BAD)
    (photos / "loop").symlink_to("loop")
    (photos.parent / "more.txt").write_text("photos/000.jpg\nnowhere.jpg\n")
    arguments = ["photos/*.JPG", "photos/0[01]*", "photos", "--from-file", "more.txt", "--out", "out.npz"]
    assert main(["embed", *arguments, "--url", stand_in.url]) == 1
    with np.load("out.npz") as file:
        names = ["BIG.JPG", "broken", "empty", "loop", "notes.txt"]
        numbers = [f"{number:03}.jpg" for number in range(100)]
        expected = [f"photos/{name}" for name in ["BIG.JPG", *numbers[:20], *sorted([*numbers, *names]), "000.jpg"]]
        assert file["paths"].tolist() == [*expected, "nowhere.jpg"]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "out.npz: features of 123 of 128 files, 4 values each, by embedder version 1"
    assert told[2:6] == [
        "        2  file_not_found (the first: 'photos/broken')",
        "        1  empty_image (the first: 'photos/empty')",
        "        1  unreadable_file (the first: 'photos/loop')",
        "        1  unsupported_image (the first: 'photos/notes.txt')",
    ]
    assert told[6] == "Not taken: 1 hidden."
    assert told[7].startswith("3 of the errors may pass: the same command with --resume tries them again.")


def test_parquet(stand_in: StandIn, photos: Path) -> None:
    """By the name of the output."""
    pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
    assert main(["embed", "photos", "--out", "out.parquet", "--url", stand_in.url]) == 0
    table = pq.read_table("out.parquet")
    assert table["path"].to_pylist() == [f"photos/{number:03}.jpg" for number in range(100)]
    assert table["embedding"].to_pylist()[7] == features(b"photo 7").tolist()


def test_through_the_real_gateway(client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The features are those that the gateway gives for each file alone; a file that is no picture has its code."""
    monkeypatch.chdir(tmp_path)
    pictures = {f"{seed:02}.png": encode(noise(8, 8, seed)) for seed in range(20)}
    for name, content in {**pictures, "text.jpg": b"no picture", "zero.jpg": b""}.items():
        (tmp_path / name).write_bytes(content)
    arguments = ["embed", "*.png", "*.jpg", "--out", "out.npz", "--batch", "3", "--url", str(client.base_url)]
    assert main([*arguments, "--normalize"]) == 1
    with np.load("out.npz") as file:
        assert file["errors"].tolist() == [""] * 20 + ["unsupported_image", "empty_image"]
        assert str(file["model"]) == "embedding_ensemble"
        for content, embedding in zip(pictures.values(), file["embeddings"], strict=False):
            answer = client.post("/v1/embed", content=content, params={"normalize": "true"}).json()
            assert_array_equal(embedding, np.array(answer["results"][0]["embedding"], np.float32))


def test_keys(
    stand_in: StandIn, photos: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a file, or the environment; never shown; a file without a key is refused before anything is sent."""
    arguments = ["embed", "photos/00*", "--url", stand_in.url, "--overwrite", "--out", "out.npz"]
    monkeypatch.setenv("TIDEGATE_API_KEY", "tg_1_fromenvironment")
    assert main(arguments) == 0
    Path("key").write_text("tg_1_fromfile\n")
    assert main([*arguments, "--api-key-file", "key"]) == 0
    assert [request.headers["Authorization"] for request in stand_in.requests] == [
        "Bearer tg_1_fromenvironment",
        "Bearer tg_1_fromfile",
    ]
    stand_in.instead = lambda request: Reply(401, "unauthorized")
    assert main([*arguments, "--api-key-file", "key"]) == 1
    Path("key").write_text("two words tg_1_secret")
    assert main([*arguments, "--api-key-file", "key"]) == 1
    assert main([*arguments, "--api-key-file", "nokey"]) == 1
    told = capfd.readouterr()
    assert "refuses such requests: unauthorized" in told.err
    assert "In key there is no API key" in told.err
    assert "The key file nokey cannot be read: No such file or directory." in told.err
    assert "tg_1" not in told.out + told.err
    assert len(stand_in.requests) == 3


def test_a_key_in_the_environment_is_no_misspelt_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway starts where the variable of this command is set; what is not spelt so is still refused."""
    monkeypatch.setenv("TIDEGATE_API_KEY", "tg_1_x")
    load_settings()
    monkeypatch.setenv("TIDEGATE_API_KEYS", "x")
    with pytest.raises(SettingsError, match="TIDEGATE_API_KEYS is not a setting"):
        load_settings()


def test_a_finished_file_is_left(stand_in: StandIn, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that always says --resume may run again."""
    arguments = ["embed", "photos", "--out", "out.npz", "--url", stand_in.url, "--resume"]
    assert main(arguments) == 0
    stand_in.requests.clear()
    assert main(arguments) == 0
    assert "no run for it was left unfinished" in capsys.readouterr().out
    assert main(arguments[:-1]) == 1
    assert "out.npz is there already" in capsys.readouterr().err
    assert stand_in.requests == []


def test_nobody_answers(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, at once."""
    assert main(["embed", "photos", "--out", "out.npz", "--url", "http://127.0.0.1:9"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("tidegate: No gateway answers at http://127.0.0.1:9 (Connection refused): ")
    assert told.endswith("start one with `tidegate up`, or name yours with --url.\n")
    assert len(told.splitlines()) == 1


def test_the_gateway_of_this_machine(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no address is given it is the one that `tidegate up` has in the same environment."""
    monkeypatch.setenv("TIDEGATE_PORT", "9")
    assert main(["embed", "photos", "--out", "out.npz"]) == 1
    assert "No gateway answers at http://127.0.0.1:9 " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "out.npz"], "name what to take"),
        (["a"], "--out"),
        (["a", "--out", "out.csv"], "must end in .npz or .parquet"),
        (["a", "--out", "out.npz", "--resume", "--overwrite"], "give one of them"),
        (["a", "--out", "out.npz", "--url", "localhost"], "no address of a gateway"),
        (["a", "--out", "out.npz", "--batch", "0"], "whole number from 1 to 4096"),
        (["a", "--out", "out.npz", "--concurrency", "many"], "whole number from 1 to 256"),
        (["a", "--out", "out.npz", "--batch-bytes", "4 apples"], "not a size such as 4MiB"),
        (["a", "--out", "out.npz", "--timeout", "0"], "not a number of seconds"),
    ],
)
def test_a_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what would be right."""
    with pytest.raises(SystemExit) as ended:
        main(["embed", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("package", "extra", "out"), [("httpx", "client", "npz"), ("pyarrow", "parquet", "parquet")])
def test_what_is_missing_is_said(
    package: str, extra: str, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that is not installed: the command that installs it, before anything is sent."""
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["embed", "photos", "--out", f"out.{out}"]) == 1
    assert capsys.readouterr().err == (
        f"tidegate: `tidegate embed` needs {package} for this: pip install 'tidegate[{extra}]'\n"
    )


def test_progress_on_a_terminal(stand_in: StandIn, photos: Path) -> None:
    """A bar where somebody looks, and the summary."""
    arguments = ["photos", "--url", stand_in.url, "--batch", "1", "--concurrency", "1"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    with process(*arguments, "--out", "bar.npz", cwd=photos.parent, stderr=theirs) as run:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:  # how Linux tells the end of a terminal
            pass
        told, _ = run.communicate(timeout=30)
    os.close(ours)
    assert b"100/100 [" in shown
    assert b"errors: 0" in shown
    assert told.startswith("bar.npz: features of 100 of 100 files")


@pytest.mark.usefixtures("photos")
def test_progress_elsewhere(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines for a log; none with --quiet; the summary in any case."""
    arguments = [
        "embed",
        "photos",
        "--url",
        stand_in.url,
        "--overwrite",
        "--out",
        "out.npz",
        "--progress-every",
        "0.001",
    ]
    for quiet in ([], ["--quiet"]):
        assert main([*arguments, *quiet]) == 0
        told = capsys.readouterr()
        assert told.out.startswith("out.npz: features of 100 of 100 files")
        assert (" a second, 0 errors, " in told.err) is not bool(quiet)


def test_help() -> None:
    """It can be shown, and knows the kinds of files that can be written."""
    assert SUFFIXES == WRITTEN
    with pytest.raises(SystemExit) as ended:
        main(["embed", "--help"])
    assert ended.value.code == 0
