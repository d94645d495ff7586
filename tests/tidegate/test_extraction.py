"""Whole runs, against a server that does as it is told."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.tidegate.stand_in import BAD, Reply, Request, StandIn, features, serving
from tidegate.bulk import Plan, Run, Walk
from tidegate.client import Model
from tidegate.delivery import Retries
from tidegate.errors import DifferentModel, GatewayAway, InputsError, NoRoom, Refused, SpoolError
from tidegate.extraction import Embed, Job, extract, is_finished, spool_folder
from tidegate.inputs import Sources
from tidegate.spool import Spool


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving(StandIn()) as server:
        yield server


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A hundred small files, `000` to `099`."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:03}").write_bytes(b"photo %d" % number)
    return folder


def job(stand_in: StandIn, *paths: Path, batch: int = 4, concurrency: int | None = 2) -> Job:
    plan = Plan(batch=batch, concurrency=concurrency, retries=Retries(2, 0.01), show_every_s=0.01)
    out = paths[0].parent / "out.npz"
    return Job(Sources(tuple(map(str, paths))), out, stand_in.url, plan=plan, timeout_s=20)


def check(out: Path, expected: dict[str, bytes | str], *, unit: bool = False) -> None:
    """That `out` has these rows in this order: features of the bytes, or the code of an error."""
    with np.load(out) as file:
        paths, errors, embeddings = file["paths"].tolist(), file["errors"].tolist(), file["embeddings"]
    assert [path.rpartition("photos/")[2] for path in paths] == list(expected)
    for path, error, embedding, what in zip(paths, errors, embeddings, expected.values(), strict=True):
        if isinstance(what, bytes):
            assert error == "", path
            assert_array_equal(embedding, features(what, unit=unit), path)
        else:
            assert error == what, path
            assert np.isnan(embedding).all()


def all_photos() -> dict[str, bytes | str]:
    return {f"{number:03}": b"photo %d" % number for number in range(100)}


@pytest.mark.parametrize("numbers", [False, True])
def test_every_input_has_one_row(stand_in: StandIn, photos: Path, numbers: bool) -> None:
    """In the order of the walk, with its own features or its own error, whichever request answered first, and whether
    the gateway sends base64 or numbers."""
    (photos / "broken").symlink_to("nowhere")
    (photos / "CAT.JPG").write_bytes(b"a photo")
    (photos / "empty").touch()
    (photos / "loop").symlink_to("loop")
    (photos / "notes.txt").write_bytes(BAD)
    (photos / ".hidden").write_bytes(b"x")
    stand_in.numbers = numbers
    together = threading.Barrier(2)

    def wait_for_another(request: Request) -> None:
        if len(stand_in.requests) <= 2:
            together.wait(20)

    stand_in.instead = wait_for_another
    summary = extract(job(stand_in, photos, concurrency=8))
    check(
        photos.parent / "out.npz",
        {
            **all_photos(),
            "CAT.JPG": b"a photo",
            "broken": "file_not_found",
            "empty": "empty_image",
            "loop": "unreadable_file",
            "notes.txt": "unsupported_image",
        },
    )
    assert (summary.rows, summary.failed, summary.sent, summary.skipped.hidden) == (105, 4, 105, 1)
    assert [(code, count) for code, count, _ in summary.problems] == [
        ("empty_image", 1),
        ("file_not_found", 1),
        ("unreadable_file", 1),
        ("unsupported_image", 1),
    ]
    assert stand_in.requests[0].fields == {"encoding_format": "base64"}
    assert all(len(request.files) <= 4 for request in stand_in.requests)
    assert 2 <= stand_in.most_at_once <= 8


def test_all_is_well(stand_in: StandIn, photos: Path) -> None:
    """No error, nothing left beside the output; the parameters are passed on."""
    wanted = replace(job(stand_in, photos), task=Embed("flowers", "15", normalize=True), key="tg_1_x")
    summary = extract(wanted)
    assert (summary.rows, summary.failed, summary.passing) == (100, 0, 0)
    check(wanted.out, all_photos(), unit=True)
    assert sorted(os.listdir(photos.parent)) == ["out.npz", "photos"]
    expected = {"model": "flowers", "version": "15", "encoding_format": "base64", "normalize": "true"}
    assert all(request.fields == expected for request in stand_in.requests)
    assert all(request.headers["Authorization"] == "Bearer tg_1_x" for request in stand_in.requests)
    assert "tg_1_x" not in repr(wanted)


def test_the_same_file_twice(stand_in: StandIn, photos: Path) -> None:
    """Two rows, one request."""
    wanted = job(stand_in, photos, photos, photos / "007", batch=16)
    assert extract(wanted).rows == 201
    check_all = [*all_photos(), *all_photos(), "007"]
    with np.load(wanted.out) as file:
        assert [path[-3:] for path in file["paths"].tolist()] == check_all
        assert_array_equal(file["embeddings"][200], features(b"photo 7"))
        assert_array_equal(file["embeddings"][107], features(b"photo 7"))
    assert set(stand_in.images.values()) == {1}


def test_a_large_file_does_not_fill_a_request_with_others(stand_in: StandIn, photos: Path) -> None:
    """A request has as many files as fit into its bytes; one that is larger goes alone."""
    (photos / "050").write_bytes(b"x" * 500)
    wanted = job(stand_in, photos, batch=50)
    wanted = replace(wanted, plan=replace(wanted.plan, batch_bytes=100))
    extract(wanted)
    check(wanted.out, {**all_photos(), "050": b"x" * 500})
    sizes = [sum(map(len, request.files)) for request in stand_in.requests]
    assert sorted(sizes)[-2] <= 100 < sorted(sizes)[-1] == 500


def test_what_an_earlier_run_left_is_not_sent_again(stand_in: StandIn, photos: Path) -> None:
    """A run that broke off, by a refusal in its middle, goes on where it was: no file that had an answer is sent
    again, and those that changed since are."""
    stand_in.instead = lambda request: Reply(401, "unauthorized") if len(stand_in.requests) > 10 else None
    wanted = job(stand_in, photos, concurrency=1)
    with pytest.raises(Refused, match="unauthorized"):
        extract(wanted)
    assert not wanted.out.exists()
    before = dict(stand_in.images)
    assert len(before) == 40
    stand_in.instead = lambda request: None
    with pytest.raises(SpoolError, match="--resume, or begin anew with --overwrite"):
        extract(wanted)
    (photos / "003").write_bytes(b"another photo")
    summary = extract(replace(wanted, resume=True))
    check(wanted.out, {**all_photos(), "003": b"another photo"})
    assert (summary.rows, summary.sent) == (100, 61)
    assert all(stand_in.images[content] == 1 for content in before)
    assert not spool_folder(wanted.out).exists()
    assert is_finished(wanted)


def test_errors_that_may_pass_are_tried_again(stand_in: StandIn, photos: Path) -> None:
    """The file is there with its errors; `resume` sends those again, and no other, and writes it anew."""
    stand_in.instead = lambda request: Reply(503, "overloaded") if b"photo 9" in request.files else None
    (photos / "050").write_bytes(BAD)
    wanted = job(stand_in, photos)
    summary = extract(wanted)
    assert (summary.failed, summary.passing) == (5, 4)
    busy = {f"{number:03}": "overloaded" for number in range(8, 12)}
    check(wanted.out, {**all_photos(), "050": "unsupported_image", **busy})
    assert not is_finished(wanted)
    stand_in.instead = lambda request: None
    stand_in.requests.clear()
    assert extract(replace(wanted, resume=True)).failed == 1
    check(wanted.out, {**all_photos(), "050": "unsupported_image"})
    assert [len(request.files) for request in stand_in.requests] == [4]


@pytest.mark.parametrize(("model", "version"), [("other", "1"), ("embedder", "2")])
def test_two_models_do_not_mix(stand_in: StandIn, photos: Path, model: str, version: str) -> None:
    """When the model or its version changes in the middle, or between two runs, the run ends and says so; what was
    there is kept, for when the model is back."""

    def exchange(request: Request) -> None:
        if len(stand_in.requests) > 10:
            stand_in.model, stand_in.version = model, version

    stand_in.instead = exchange
    wanted = job(stand_in, photos, concurrency=1)
    for again in (False, True):
        with pytest.raises(DifferentModel, match=f"{model} version {version} .* and before it embedder version 1 "):
            extract(replace(wanted, resume=again))
        assert not wanted.out.exists()
    stand_in.model, stand_in.version = "embedder", "1"
    stand_in.instead = lambda request: None
    assert extract(replace(wanted, resume=True)).sent == 60
    check(wanted.out, all_photos())


def test_two_versions_that_share_the_work_do_not_mix(stand_in: StandIn, photos: Path) -> None:
    """A gateway that answers by turns with two versions: the run ends, and what its sentence says to do helps."""

    def by_turns(request: Request) -> None:
        stand_in.version = request.fields.get("version") or str(1 + len(stand_in.requests) // 6 % 2)

    stand_in.instead = by_turns
    wanted = job(stand_in, photos, concurrency=1)
    with pytest.raises(DifferentModel, match="--resume with --model-version 1 pins the one from before"):
        extract(wanted)
    with pytest.raises(SpoolError, match=r"asked for something else \(version 1\)"):
        extract(replace(wanted, resume=True, task=Embed(model_version="2")))
    summary = extract(replace(wanted, resume=True, task=Embed("embedder", "1")))
    assert (summary.model, summary.sent) == (Model("embedder", "1", 4), 80)
    check(wanted.out, all_photos())


def test_features_that_are_not_of_unit_length_are_refused(stand_in: StandIn, photos: Path) -> None:
    """A server that does not know `normalize` passes over it; nothing is left behind."""
    stand_in.obeys = False
    wanted = job(stand_in, photos)
    with pytest.raises(Refused, match="does not answer as a Tidegate gateway does: unit length was asked for"):
        extract(replace(wanted, task=Embed(normalize=True)))
    assert os.listdir(photos.parent) == ["photos"]
    extract(wanted)
    check(wanted.out, all_photos())


def test_a_long_pause_ends_the_run(stand_in: StandIn, photos: Path) -> None:
    """What was answered before is kept, and the next run goes on there."""
    stand_in.instead = lambda request: (
        Reply(503, "overloaded", {"Retry-After": "99999999"}) if len(stand_in.requests) > 10 else None
    )
    wanted = job(stand_in, photos, concurrency=1)
    with pytest.raises(GatewayAway, match=r"asks to be left alone for 27,777 h 46 min \(overloaded\)"):
        extract(wanted)
    stand_in.instead = lambda request: None
    assert extract(replace(wanted, resume=True)).sent == 60
    check(wanted.out, all_photos())


def test_what_the_server_says_is_clean_in_the_file(stand_in: StandIn, photos: Path) -> None:
    """No control characters, no surrogates, and no novel: neither in codes nor in messages."""
    texts = ["one\nline", "\x1b[2Jgone\x07\u202e", "\ud800", "x" * 100_000, None, 7]
    results = [
        {"index": i, "status": "error", "error": {"code": text, "message": text}} for i, text in enumerate(texts)
    ]
    body = json.dumps({"code": "no_usable_image", "results": results}).encode()
    stand_in.instead = lambda request: Reply(422, body=body)
    wanted = job(stand_in, *(photos / f"{number:03}" for number in range(6)), batch=6)
    assert extract(wanted).problems[0][:2] == ("unknown_error", 6)
    with np.load(wanted.out) as file:
        assert set(file["errors"].tolist()) == {"unknown_error"}
        first, second, *nothing = file["messages"].tolist()
    assert (first, second) == ("one line", "[2Jgone")
    unsaid = "The gateway did not say why."
    assert nothing == [unsaid, "x" * 199 + "…", unsaid, unsaid]


def test_two_runs_that_ask_for_different_things_do_not_mix(stand_in: StandIn, photos: Path) -> None:
    """Half of the features of unit length and half not would be of no use."""
    stand_in.instead = lambda request: Reply(401, "unauthorized") if len(stand_in.requests) > 10 else None
    wanted = job(stand_in, photos)
    with pytest.raises(Refused):
        extract(wanted)
    with pytest.raises(SpoolError, match=r"asked for something else \(normalize not given\)"):
        extract(replace(wanted, resume=True, task=Embed(normalize=True)))
    stand_in.instead = lambda request: None
    extract(replace(wanted, overwrite=True, task=Embed(normalize=True)))
    check(wanted.out, all_photos(), unit=True)


def test_a_file_that_is_there_is_not_replaced(stand_in: StandIn, photos: Path) -> None:
    """Unless it was asked for; and then it is there until the new one is whole."""
    wanted = job(stand_in, photos)
    wanted.out.write_bytes(b"precious")
    with pytest.raises(SpoolError, match="there already"):
        extract(wanted)
    stand_in.instead = lambda request: Reply(401, "unauthorized")
    with pytest.raises(Refused):
        extract(replace(wanted, overwrite=True))
    assert wanted.out.read_bytes() == b"precious"
    assert stand_in.images.total() == 0
    stand_in.instead = lambda request: None
    extract(replace(wanted, overwrite=True))
    check(wanted.out, all_photos())


def test_nobody_answers(photos: Path) -> None:
    """It is said at once, and nothing is left behind that would need --resume."""
    wanted = Job(Sources((str(photos),)), photos.parent / "out.npz", "http://127.0.0.1:9")
    with pytest.raises(GatewayAway, match="No gateway answers at http://127"):
        extract(wanted)
    assert os.listdir(photos.parent) == ["photos"]


def test_an_outage_ends_the_run(stand_in: StandIn, photos: Path) -> None:
    """After its retries, with what was answered kept, and without an error for each of the other files."""

    def outage(request: Request) -> Reply | None:
        stand_in.ready = len(stand_in.requests) <= 5
        return None if stand_in.ready else Reply(0)

    stand_in.instead = outage
    wanted = job(stand_in, photos)
    with pytest.raises(GatewayAway, match="not there or not ready, after 3 tries"):
        extract(wanted)
    stand_in.instead = lambda request: None
    assert extract(replace(wanted, resume=True)).sent == 80
    check(wanted.out, all_photos())


def test_nothing_to_do(stand_in: StandIn, tmp_path: Path) -> None:
    """No file at all is more likely a mistake than a wish; what was passed over is told."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / ".hidden").touch()
    with pytest.raises(InputsError, match=r"no file was found\. Not taken: 1 hidden"):
        extract(job(stand_in, tmp_path / "photos"))
    assert os.listdir(tmp_path) == ["photos"]


def test_a_walk_that_goes_wrong(stand_in: StandIn, photos: Path) -> None:
    """A list that cannot be read ends the run with its sentence, wherever it is noticed."""
    wanted = job(stand_in, photos)
    with pytest.raises(InputsError, match=r"gone\.txt"):
        extract(replace(wanted, sources=Sources((), ("gone.txt",))))
    film = photos.parent / "film"
    film.write_bytes(b"x" * 100_000)
    with pytest.raises(InputsError, match="Line 1"):
        extract(replace(wanted, sources=Sources((str(photos),), (str(film),))))


def test_batches_that_fail_together(
    stand_in: StandIn, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One error comes out, and asyncio says nothing about the others."""

    async def fail(run: Run, paths: Sequence[str]) -> None:
        raise Refused(paths[0])

    monkeypatch.setattr(Run, "_handle", fail)
    with pytest.raises(Refused):
        extract(job(stand_in, photos, concurrency=8))
    gc.collect()
    assert caplog.records == []


def test_a_spool_that_fails_while_the_run_ends(
    stand_in: StandIn, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for what was being kept when another batch ended the run: asyncio says nothing about it."""
    adding, ending = threading.Event(), threading.Event()

    def fail(*_: object) -> None:
        adding.set()
        ending.wait(20)
        raise NoRoom("full")

    def refuse_the_second(request: Request) -> Reply | None:
        if len(stand_in.requests) == 1:
            return None
        adding.wait(20)
        return Reply(401, "unauthorized")

    monkeypatch.setattr(Spool, "add", fail)
    monkeypatch.setattr(Walk, "end", lambda walk: ending.set())  # what a run does first when it ends
    stand_in.instead = refuse_the_second
    with pytest.raises(Refused):
        extract(job(stand_in, photos))
    gc.collect()
    assert caplog.records == []


def test_no_thread_is_left(stand_in: StandIn, photos: Path) -> None:
    """A program may extract as often as it likes, in any thread."""
    before = set(threading.enumerate())
    done: list[int] = []
    worker = threading.Thread(target=lambda: done.append(extract(job(stand_in, photos)).rows))
    worker.start()
    worker.join(30)
    assert done == [100]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive() or "process_request" in thread.name  # the server's own, of a kept connection
