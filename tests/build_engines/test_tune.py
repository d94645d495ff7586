"""`python -m build_engines tune`: what is tried, what is chosen, and real servers that are measured and left clean."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines import publish, tune
from build_engines.configs import DEFAULT_EMBEDDER, DEFAULT_MODEL, Entry, Serving, Tuning
from build_engines.errors import TuneError
from build_engines.images import SAMPLES
from build_engines.preprocessing import Preprocessing
from build_engines.tuning.choice import (
    Findings,
    InvalidError,
    Measured,
    Point,
    Round,
    beats_noise,
    best,
    best_point,
    conclude,
    descend,
    nearest,
)
from build_engines.tuning.entry import copy_entry, find_entry, own_setting, served_config
from build_engines.tuning.load import Load, Rows, check_row, measure, percentile, read_photos
from build_engines.tuning.report import Report, document, table
from build_engines.tuning.servers import Control, Embedded, Remote
from build_engines.tuning.settings import Change, Setting, axes, changed, setting_of
from gateway.triton.local import LocalTriton, LocalTritonError, Ports, find_installation, free_ports
from tests.servers import ROOT

TODAY = Setting(instances=2, threads=None, max_batch=32, delay_us=0)

RECIPE = {
    "resize": "squash",
    "resize_to": 16,
    "interpolation": "bilinear",
    "crop": "none",
    "size": 16,
    "color": "RGB",
    "mean": [0, 0, 0],
    "std": [1, 1, 1],
}

# The shares of red, green and blue in a picture.
TOY = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pixels = pb_utils.get_input_tensor_by_name(request, "PREPROCESSED_IMAGE").as_numpy()
            means = pixels.mean(axis=(1, 2)) + 1
            shares = (means / means.sum(axis=1, keepdims=True)).astype(np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CLASSIFICATION", shares)]))
        return responses
"""


@pytest.fixture
def toy(tmp_path: Path) -> Entry:
    """A published model that takes no time: three classes, batches up to 8 on the CPU."""
    (tmp_path / "repository").mkdir()
    entry = Entry(tmp_path / "repository", "toy")
    serving = Serving('backend: "python"', "cpu", max_batch=8, instances=1, delay_us=0)
    files = {
        "model.py": TOY.encode(),
        "preprocess.json": json.dumps(RECIPE).encode(),
        "labels.txt": b"red\ngreen\nblue\n",
        "weights.bin": bytes(2 << 20),
    }
    version = publish.stage(entry, files, serving=serving, size=16, width=3, certificate={})
    publish.promote(entry, version.name)
    return entry


@pytest.fixture
def needs_triton() -> None:
    """Skips the test where no Triton can run."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))


@pytest.fixture
def explicit(needs_triton: None, toy: Entry, tmp_path: Path) -> Iterator[LocalTriton]:
    """A real Triton that loads models on demand and serves the toy."""
    server = LocalTriton(
        [toy.repository],
        ports=Ports(*free_ports(3)),
        log_file=tmp_path / "triton.log",
        arguments=["--model-control-mode=explicit", "--load-model=toy"],
    )
    with server:
        server.wait_ready()
        yield server


def point(clients: int, rate: float, p95_ms: float) -> Point:
    return Point(clients, rate, p95_ms / 2, p95_ms, answers=100)


def measured(setting: Setting, *points: Point) -> Measured:
    return Measured(setting, points)


def options(toy: Entry, *arguments: str) -> argparse.Namespace:
    """Of a run on the toy that is as short as can be."""
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    common = ["--repository", str(toy.repository), "--model", toy.model, "--clients", "1,4", "--seconds", "0.2"]
    return parser.parse_args([*common, "--work", str(toy.repository.parent / "work"), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def settings_of(axis: list[Change]) -> list[tuple[int | None, int | None]]:
    return [(change["instances"], change.get("threads", -1)) for change in axis]


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, None), (2, None)]),
        (2, [(1, None), (2, None), (2, 1)]),
        (16, [(1, None), (2, None), (2, 8), (4, 4), (16, 1)]),
        (64, [(1, None), (2, None), (2, 32), (4, 16), (16, 4)]),
    ],
)
def test_instances_and_threads_follow_the_cores(cores: int, expected: list[tuple[int, int | None]]) -> None:
    """No more threads than cores in all, but for two instances that take turns; at most 16 processes."""
    assert settings_of(axes(TODAY, largest_batch=32, cores=cores, gpu=False)[0]) == expected


def test_a_gpu_has_no_threads_to_vary() -> None:
    """On a GPU one to four instances, delays and batch sizes down from what the engine takes are tried."""
    first, delays, batches = axes(TODAY, largest_batch=256, cores=None, gpu=True)
    assert settings_of(first) == [(1, -1), (2, -1), (3, -1), (4, -1)]
    assert [change["delay_us"] for change in delays] == [0, 1000, 5000]
    assert [change["max_batch"] for change in batches] == [256, 64, 32]


def test_one_thing_is_varied_at_a_time() -> None:
    """Each axis starts from the best so far, and no setting is measured twice."""
    asked = []

    def pretend(setting: Setting) -> Measured:
        asked.append(setting)
        return measured(setting, point(8, 100 + 10 * setting.instances - setting.delay_us / 1000, 50))

    grid: list[list[Change]] = [[{"instances": 2}, {"instances": 3}], [{"delay_us": 0}, {"delay_us": 1000}]]
    found = descend(measured(TODAY, point(8, 120, 50)), grid, pretend, None)
    assert asked == [replace(TODAY, instances=3), replace(TODAY, instances=3, delay_us=1000)]
    assert [each.setting for each in found] == [TODAY, *asked]


def test_the_budget_decides_which_loads_count() -> None:
    """The best is the highest throughput among the loads within the budget, not of all."""
    fast = measured(replace(TODAY, instances=4), point(1, 50, 20), point(32, 300, 200))
    quick = measured(TODAY, point(1, 80, 12), point(32, 200, 150))
    assert best([quick, fast], None) is fast
    assert best([quick, fast], 100) is quick
    assert best_point(quick, 100) == point(1, 80, 12)
    assert best_point(quick, 10) is None


def test_an_invalid_setting_is_never_the_best() -> None:
    """A setting that failed counts for nothing, even where no other fits the budget."""
    broken = Measured(replace(TODAY, instances=3), (point(8, 999, 1),), "a request failed")
    slow = measured(TODAY, point(8, 10, 500))
    assert best([slow, broken], None) is slow
    assert best([slow, broken], 20) is slow
    assert nearest([slow, broken]) == (slow, point(8, 10, 500))


@pytest.mark.parametrize(
    ("today", "winner", "budget_ms", "expected"),
    [
        ([100, 100], [104, 104], None, True),
        ([100, 100], [150, 102], None, False),
        ([100, 100], [104, 104], 40, False),
    ],
)
def test_only_a_clear_lead_in_every_round_counts(
    today: list[float], winner: list[float], budget_ms: float | None, expected: bool
) -> None:
    """More than 3 % in each round, within the budget."""
    rounds = [Round(point(8, a, 30), point(8, b, 50)) for a, b in zip(today, winner, strict=True)]
    assert beats_noise(rounds, budget_ms) is expected


def test_a_slower_setting_wins_where_todays_misses_the_budget() -> None:
    """The budget comes before throughput."""
    assert beats_noise([Round(point(8, 100, 90), point(1, 60, 20))], budget_ms=40)


@pytest.mark.parametrize(
    ("rates", "again", "budget_ms", "chosen", "words"),
    [
        ((100, 120), 120, None, 3, "In turn with today's it answered 1.20 and 1.20 × the images/s"),
        ((100, 120), 101, None, 2, "not by more than 3% in each of 2 rounds"),
        ((100, 102), 110, None, 2, "nothing that was tried is more than 3% faster"),
        ((100, 120), 120, 10, None, "No setting stays within 10 ms at p95. The nearest is 2 instances, batches to 32"),
    ],
)
def test_the_outcome_says_what_follows(
    rates: tuple[float, float], again: float, budget_ms: float | None, chosen: int | None, words: str
) -> None:
    """A win, one not confirmed, none beyond the noise, and nothing within the budget: each has its sentence."""
    points = [point(8, rates[0], 30), point(8, rates[1], 40)]
    found = conclude(
        [measured(TODAY, points[0]), measured(replace(TODAY, instances=3), points[1])],
        [Round(points[0], point(8, again, 40))] * 2,
        budget_ms,
    )
    assert words in found.outcome
    assert (found.chosen.instances if found.chosen else None) == chosen


def test_a_winner_that_fails_later_changes_nothing() -> None:
    """Fewer rounds than there should be are no proof."""
    both = [measured(TODAY, point(8, 100, 30)), measured(replace(TODAY, instances=3), point(8, 200, 30))]
    assert conclude(both, [Round(both[0].points[0], both[1].points[0])], None).chosen == TODAY


def test_a_setting_that_once_stayed_within_the_budget_is_not_enough() -> None:
    """Where today's misses the budget and the winner's does so when measured again, nothing is chosen."""
    both = [measured(TODAY, point(8, 100, 90)), measured(replace(TODAY, instances=1), point(8, 80, 45))]
    found = conclude(both, [Round(point(8, 100, 90), point(8, 80, 55))] * 2, 50)
    assert found.chosen is None
    assert "when it was measured again" in found.outcome


def test_a_machine_that_was_not_quiet_is_told() -> None:
    """When today's setting differs from itself by more than 10 %, the outcome says so."""
    both = [
        measured(TODAY, point(1, 50, 20), point(8, 150, 60)),
        measured(replace(TODAY, instances=3), point(8, 80, 99)),
    ]
    said = conclude(both, (), None, again=point(8, 90, 100)).outcome
    assert said.endswith(
        "But the machine was not quiet: today's setting answered 150.0 images/s at first and 90.0 at the end. "
        "Measure again when nothing else runs."
    )
    quiet = conclude(both, (), None, again=point(8, 145, 61))
    assert "quiet" not in quiet.outcome
    assert table(quiet).splitlines()[-1].startswith("today, once more")


def test_p95_is_one_of_the_values() -> None:
    """Percentiles are nearest ranks: no value between two that were measured."""
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([7.0], 95) == 7.0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.2, 0.8, 0.3], "sum to 1.300"),
        ([0.7, 0.2, 0.1], "top-1 of a.jpg is class 0, and 1 before"),
        ([float("nan"), 0.5, 0.5], "not a number"),
    ],
)
def test_wrong_probabilities_are_noticed(row: list[float], words: str) -> None:
    """A sum that is not 1, another top-1 and NaN make a setting invalid."""
    expected = np.array([0.1, 0.8, 0.1], np.float32)
    with pytest.raises(InvalidError, match=words):
        check_row("a.jpg", np.array(row, np.float32), expected, "classify")
    check_row("a.jpg", np.array([0.11, 0.8, 0.09], np.float32), expected, "classify")


def test_another_feature_is_noticed() -> None:
    """An embedder's answers must point the same way as before; their length is free."""
    expected: Rows = np.array([1, 2, 3], np.float32)
    check_row("a.jpg", expected * 2, expected, "embed")
    with pytest.raises(InvalidError, match="another one than before"):
        check_row("a.jpg", np.array([3, 2, 1], np.float32), expected, "embed")


def findings() -> Findings:
    invalid = Measured(replace(TODAY, instances=4), (), "the model did not load: no memory")
    fast = measured(replace(TODAY, instances=1, threads=2), point(1, 90, 12), point(8, 180, 60))
    both = [measured(TODAY, point(1, 80, 14), point(8, 140, 120)), fast, invalid]
    return conclude(both, [Round(both[0].points[0], fast.points[1])] * 2, 100)


def test_the_table() -> None:
    """Every load of every setting has a row; what misses the budget, failed, or was chosen is marked."""
    lines = table(findings()).splitlines()
    assert lines[0].split() == ["setting", "clients", "images/s", "p50", "ms", "p95", "ms"]
    assert lines[2].startswith("2 instances, batches to 32, delay 0 µs (today)")
    assert lines[3].split() == ["8", "140.0", "60.0", "120.0", "!"]
    assert lines[4].startswith("1 instance of 2 threads, batches to 32, delay 0 µs (chosen)")
    assert lines[6].endswith("the model did not load: no memory")
    assert lines[7].split() == ["round", "1,", "today", "1", "80.0", "7.0", "14.0"]
    assert len(lines) == 11


def test_the_document_can_be_read_again() -> None:
    """The JSON holds the command, the machine and every figure."""
    read = json.loads(json.dumps(document(Report("classifier", "python -m …", "embedded", 4.0, findings()))))
    assert read["command"] == "python -m …"
    assert read["machine"]["cores"] >= 1
    assert read["findings"]["measured"][1]["points"][1]["rate"] == 180
    assert read["findings"]["chosen"] == {"instances": 1, "threads": 2, "max_batch": 32, "delay_us": 0}


def test_the_plot(tmp_path: Path) -> None:
    """The plot has a line for each valid setting, the budget, and marks for today's and the chosen one."""
    pytest.importorskip("matplotlib")
    from build_engines.tuning.plot import draw, write_plot

    (legend,) = draw(findings(), "classifier").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "2 instances, batches to 32, delay 0 µs (today)",
        "1 instance of 2 threads, batches to 32, delay 0 µs (chosen)",
        "chosen: 180 images/s, p95 60 ms, 8 clients",
        "budget: 100 ms",
    ]
    write_plot(findings(), "classifier", tmp_path / "new" / "tune.png")
    assert (tmp_path / "new" / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_a_configuration_keeps_what_is_not_tuned() -> None:
    """Only the four numbers change; taking the number of threads away gives the core count back."""
    text = (
        'name: "c" backend: "python" max_batch_size: 8 instance_group [ { kind: KIND_GPU count: 2 } ]'
        'dynamic_batching { max_queue_delay_microseconds: 7 } parameters { key: "x" value { string_value: "y" } }'
    )
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert setting_of(config) == Setting(2, None, 8, 7)
    other = changed(config, Setting(3, 4, 2, 0))
    assert setting_of(other) == Setting(3, 4, 2, 0)
    assert other.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert other.parameters["x"].string_value == "y"
    assert changed(other, setting_of(config)) == config


def test_a_smaller_batch_is_said_everywhere() -> None:
    """Triton's own preferred batch and the warm-up follow a smaller largest batch."""
    text = (
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 8 ] }"
        'model_warmup [ { name: "one" batch_size: 1 }, { name: "full" batch_size: 8 } ]'
    )
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    other = changed(config, Setting(1, None, 4, 0))
    assert list(other.dynamic_batching.preferred_batch_size) == [2]
    assert [sample.batch_size for sample in other.model_warmup] == [1, 4]
    assert list(changed(config, Setting(1, None, 16, 0)).dynamic_batching.preferred_batch_size) == [2]


def test_a_trial_never_touches_the_model_itself(toy: Entry, tmp_path: Path) -> None:
    """A copy has big files as links and everything else as its own; tuning it leaves the model as it was."""
    before = contents(toy.repository)
    (tmp_path / "copy").mkdir()
    copy = copy_entry(toy, tmp_path / "copy")
    publish.retune(copy, "cpu", Tuning(instances=3, threads=1, max_batch=4, delay_us=500))
    assert setting_of(served_config(copy, "cpu")) == Setting(3, 1, 4, 500)
    assert (copy.folder / "1" / "weights.bin").is_symlink()
    assert contents(toy.repository) == before


def test_what_the_build_chose_is_known_after_tuning(toy: Entry, tmp_path: Path) -> None:
    """The engine's largest batch is found again, however small a batch was tuned to."""
    publish.retune(toy, "cpu", Tuning(max_batch=2))
    (tmp_path / "scratch").mkdir()
    assert own_setting(toy, "cpu", tmp_path / "scratch").max_batch == 8


def test_entries_that_cannot_be_tuned(toy: Entry, tmp_path: Path) -> None:
    """A missing model, one of another make, one without CPU configuration and missing photos get a sentence each."""
    with pytest.raises(TuneError, match=r"cannot be read .*--repository and --model"):
        find_entry(toy.repository, "nothing")
    path = toy.repository / "toy" / "configs" / "cpu.pbtxt"
    path.write_text(path.read_text().replace('model_name: "toy_classifier"', 'model_name: "other"'))
    with pytest.raises(TuneError, match="not an ensemble of toy_preprocessor and toy_classifier"):
        find_entry(toy.repository, "toy")
    with pytest.raises(TuneError, match="no configuration for CPUs"):
        Embedded(Entry(tmp_path, "toy"))
    with pytest.raises(TuneError, match="no photos"):
        read_photos(tmp_path, toy)
    with pytest.raises(TuneError, match="No Triton answers"):
        Remote(toy, f"127.0.0.1:{free_ports(1)[0]}")


def test_an_embedded_server_serves_a_setting(needs_triton: None, toy: Entry) -> None:
    """`tidegate up` serves the changed copy, answers are checked, and its Triton refuses to be reloaded."""
    photos = read_photos(SAMPLES, toy)
    setting = Setting(instances=2, threads=1, max_batch=4, delay_us=500)
    server = Embedded(toy)
    assert server.today() == Setting(1, None, 8, 0)
    with server.serving(setting) as url:
        with Control(url) as control:
            assert setting_of(control.config(toy.network)) == setting
            with pytest.raises(InvalidError, match="unknown model"):  # the default model was not built for it
                control.config("ensemble_model")
        points, rows = measure(url, photos, Load([3], seconds=0.2, warmup_s=0.1), None)
        assert [each.clients for each in points] == [3]
        assert rows.shape == (3, 3)
        with pytest.raises(InvalidError, match=r"top-1 of cat\.jpg"):
            measure(url, photos, Load([1], 0.1, 0), np.roll(rows, 1, axis=1))
        with pytest.raises(TuneError, match="--model-control-mode=explicit"), Remote(toy, url) as remote:
            remote.serving(None).__enter__()
    assert setting_of(served_config(toy, "cpu")) == server.today()


def test_a_run_against_a_running_server(
    explicit: LocalTriton, toy: Entry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings are loaded by the repository API, the choice is written, and the server is as before."""
    monkeypatch.setattr("build_engines.tuning.settings.GPU_INSTANCES", (1, 2))
    monkeypatch.setattr("build_engines.tuning.settings.DELAYS_US", (0,))
    before = contents(toy.repository)
    with Control(explicit.url) as control:
        served = control.config(toy.network), control.config(toy.model)

        with pytest.raises(TuneError, match=r"No setting stays within 0\.001 ms at p95\. The nearest is"):
            tune.run(options(toy, "--triton", explicit.url, "--budget-ms", "0.001", "--dry-run"))
        assert contents(toy.repository) == before
        assert not (toy.repository.parent / "work").exists()

        real = builtins.__import__

        def without_matplotlib(name: str, *rest: object) -> object:
            if name.startswith("matplotlib"):
                raise ModuleNotFoundError(name)
            return real(name, *rest)  # type: ignore[arg-type]  # handed on as it came

        monkeypatch.setattr(builtins, "__import__", without_matplotlib)
        assert tune.run(options(toy, "--triton", explicit.url)) == 0
        assert (control.config(toy.network), control.config(toy.model)) == served
    said = capsys.readouterr().out
    assert "2 instances, batches to 8" in said
    assert "The plot is left out" in said
    found = json.loads((toy.repository.parent / "work" / "tune.json").read_text())["findings"]
    assert not any(each["invalid"] for each in found["measured"])
    assert len(found["measured"]) == 3
    assert setting_of(served_config(toy, "cpu")) == Setting(**found["chosen"])
    if found["chosen"] == found["today"]:
        assert contents(toy.repository) == before


def test_a_setting_that_does_not_load_is_survived(explicit: LocalTriton, toy: Entry) -> None:
    """A refused setting is invalid with Triton's reason; the next one is served all the same."""
    with Remote(toy, explicit.url) as remote:
        with pytest.raises(InvalidError, match="failed to load"), remote.serving(replace(remote.today(), max_batch=-1)):
            pass
        with remote.serving(replace(remote.today(), max_batch=2)) as url, Control(url) as control:
            assert [control.config(name).max_batch_size for name in (toy.network, toy.model)] == [2, 2]
    with Control(explicit.url) as control:
        assert [control.config(name).max_batch_size for name in (toy.network, toy.model)] == [8, 8]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Entry, Entry]:
    """The toy as the default classifier, and the default embedder with the same pixels."""
    classifier, embedder = Entry(tmp_path / "pair", DEFAULT_MODEL), Entry(tmp_path / "pair", DEFAULT_EMBEDDER, "embed")
    certificate = {"preprocess": {"pixels_sha256": Preprocessing.of(RECIPE).pixels_sha256}}
    for entry, output in ((classifier, "CLASSIFICATION"), (embedder, "EMBEDDING")):
        files = {
            "model.py": TOY.replace("CLASSIFICATION", output).encode(),
            "preprocess.json": json.dumps(RECIPE).encode(),
            "labels.txt": b"red\ngreen\nblue\n",
        }
        serving = Serving('backend: "python"', "cpu", max_batch=8, instances=1, delay_us=0)
        version = publish.stage(entry, files, serving=serving, size=16, width=3, certificate=certificate)
        publish.promote(entry, version.name)
    return classifier, embedder


def test_models_that_share_a_preprocessor_are_tuned_alone(pair: tuple[Entry, Entry], tmp_path: Path) -> None:
    """Either is found and copied with all that it needs, and tuning the copy leaves both as they were."""
    before = contents(tmp_path / "pair")
    for number, (entry, models) in enumerate(zip(pair, (3, 5), strict=True)):
        assert find_entry(entry.repository, entry.model) == entry
        (tmp_path / f"copy{number}").mkdir()
        copy = copy_entry(entry, tmp_path / f"copy{number}")
        publish.retune(copy, "cpu", Tuning(max_batch=4))
        assert setting_of(served_config(copy, "cpu")).max_batch == 4
        assert len(list(copy.repository.iterdir())) == models
        ensemble = (copy.repository / entry.model / "configs" / "cpu.pbtxt").read_text()
        assert "max_batch_size: 4\n" in ensemble
        assert 'model_name: "preprocessor"\n' in ensemble
    assert contents(tmp_path / "pair") == before


def test_a_running_server_keeps_what_shares_the_network(needs_triton: None, pair: tuple[Entry, Entry]) -> None:
    """While a classifier with smaller batches is measured, the embedder that asks it promises no larger ones."""
    entry, other = pair
    arguments = ["--model-control-mode=explicit", *(f"--load-model={each.model}" for each in pair)]
    with LocalTriton([entry.repository], ports=Ports(*free_ports(3)), arguments=arguments) as triton:
        triton.wait_ready()
        names = (entry.network, entry.model, other.model)
        with Control(triton.url) as control:
            with Remote(entry, triton.url) as remote, remote.serving(replace(remote.today(), max_batch=2)):
                assert [control.config(name).max_batch_size for name in names] == [2, 2, 2]
            assert [control.config(name).max_batch_size for name in names] == [8, 8, 8]
            control.check_ready(other)


def test_ctrl_c_leaves_nothing_behind(needs_triton: None, toy: Entry, tmp_path: Path) -> None:
    """Interrupted while it measures, the command stops its server, removes its folders and writes nothing."""
    before = contents(toy.repository)
    (tmp_path / "tmp").mkdir()
    program = (
        "import argparse, sys; from build_engines import tune; p = argparse.ArgumentParser(); tune.add_arguments(p);"
        "sys.exit(tune.run(p.parse_args()))"
    )
    command = [sys.executable, "-c", program, "--repository", str(toy.repository), "--model", "toy"]
    process = subprocess.Popen(
        [*command, "--seconds", "60", "--work", str(tmp_path / "work")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        family: list[psutil.Process] = []
        names: list[str] = []
        while not any(name.startswith("triton_python_b") for name in names):
            assert process.poll() is None
            with suppress(psutil.NoSuchProcess):  # some live for a moment only
                family = psutil.Process(process.pid).children(recursive=True)
                names = [each.name() for each in family]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=90)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert said == "Interrupted: nothing was written.\n"
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "work").exists()
    assert contents(toy.repository) == before
