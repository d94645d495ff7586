from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from build_engines import publish
from build_engines.__main__ import main
from build_engines.build import Order
from build_engines.configs import Entry
from build_engines.errors import GateError
from build_engines.sources import Wish
from tests.build_engines.conftest import TinySource


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """What `build` is called with; it does nothing."""
    found: list[Order] = []
    monkeypatch.setattr("build_engines.__main__.build", found.append)
    return found


def test_a_bare_source_builds_the_default_model(orders: list[Order]) -> None:
    """`python -m build_engines efficientnet_lite0` puts it behind the name that callers get without asking."""
    assert main(["efficientnet_lite0"]) == 0
    (order,) = orders
    assert (order.repository, order.model, order.target) == (Path("model_repository"), "ensemble_model", "openvino")
    assert order.command == "python -m build_engines efficientnet_lite0"


def test_options_reach_the_order(orders: list[Order], tmp_path: Path) -> None:
    """Every option has its place in the order."""
    words = "resnet50 --weights random --classes 7 --size 160 --task classify --target onnxruntime --precision int8"
    words += " --labels l --calibration c --calibration-part 1/2 --images i --part 2/2 --min-agreement 0.5"
    words += " --max-accuracy-loss 0.1 --preprocess p --model flowers --force --stage"
    words += " --normalise none --pool class+patches --head h --moderation m"
    assert main([*words.split(), "--repository", str(tmp_path), "--work", str(tmp_path)]) == 0
    assert orders == [
        Order(
            source="resnet50",
            wish=Wish("random", 7, 160, "classify", normalise="none", pool="class+patches", head=Path("h")),
            repository=tmp_path,
            model="flowers",
            target="onnxruntime",
            precision="int8",
            preprocess=Path("p"),
            labels=Path("l"),
            moderation=Path("m"),
            calibration=Path("c"),
            calibration_part="1/2",
            images=Path("i"),
            part="2/2",
            min_agreement=0.5,
            max_accuracy_loss=0.1,
            work=tmp_path,
            command=orders[0].command,
            force=True,
            promote=False,
            pin=True,
        )
    ]


def test_the_command_to_repeat_names_no_folder(orders: list[Order], tmp_path: Path) -> None:
    """Certificates are shown to callers: files are named without the folders of the machine that built."""
    main(["resnet50", "--weights", f"{tmp_path}/my.pth", f"--repository={tmp_path}", "--force", "--model", "x"])
    assert orders[0].command == (
        f"python -m build_engines resnet50 --weights my.pth --repository={tmp_path.name} --model x"
    )


def test_an_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user can mend comes without a traceback, and exit code 1 stops a script."""

    def refuse(_: Any) -> None:
        raise GateError("It was refused.")

    monkeypatch.setattr("build_engines.__main__.build", refuse)
    assert main(["efficientnet_lite0"]) == 1
    assert capsys.readouterr().err == "It was refused.\n"


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C says that nothing has changed for callers."""

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("build_engines.__main__.build", interrupt)
    assert main(["efficientnet_lite0"]) == 130
    assert "served still" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "ümlaut", "a b"])
def test_a_model_name_that_is_a_path_is_refused(
    orders: list[Order], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name becomes folders and a line of configuration: letters, digits, _, - and a dot inside."""
    assert main(["efficientnet_lite0", f"--model={name}"]) == 1
    assert "cannot be a model's name" in capsys.readouterr().err
    assert orders == []


def test_no_source_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names one to try."""
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "efficientnet_lite0" in capsys.readouterr().err


def test_versions_are_listed_promoted_and_rolled_back(
    tiny_source: TinySource, order: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list with what is served, the version before, a version by its number, and an automatic build that minds it."""
    where = ["--repository", str(order.repository), "--model", "tiny", "--work", str(order.work)]
    entry = Entry(order.repository, "tiny")
    assert main(["tiny", *where]) == 0
    assert main(["tiny", *where, "--force"]) == 0
    capsys.readouterr()
    assert main(["--rollback", *where]) == 0
    assert publish.served(entry, "cpu") == "1"
    assert main(["tiny", *where, "--unless-chosen"]) == 0
    assert "chosen by hand: left as it is" in capsys.readouterr().out
    assert main(["--promote", "2", *where]) == 0
    assert main(["--list", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: version 2 is served"
    assert "served" not in lines[1]
    assert lines[2].startswith("   2  served")
    assert main(["--promote", "9", *where]) == 1
    assert "no whole version 9: there are 1, 2" in capsys.readouterr().err
    assert main(["--list", "--repository", str(order.repository), "--model", "other"]) == 1
    assert "has no versions of other" in capsys.readouterr().err


def test_a_version_is_put_beside_another(
    tiny_source: TinySource, order: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    """With shares that can be changed and are listed; shares without a version, or with none, are refused."""
    where = ["--repository", str(order.repository), "--model", "tiny", "--work", str(order.work)]
    assert main(["tiny", *where]) == 0
    assert main(["tiny", *where, "--force", "--stage"]) == 0
    capsys.readouterr()
    assert main(["--beside", "2", "--weight", "0.1", "--shadow", "0.5", *where]) == 0
    assert main(["--beside", "2", "--shadow", "1", *where]) == 0
    assert main(["--list", *where]) == 0
    first, second, main_line, beside_line = capsys.readouterr().out.splitlines()
    assert first == "tiny: version 2 is served beside version 1, weight 0.1, shadow 0.5"
    assert second == "tiny: version 2 is served beside version 1, weight 0, shadow 1"
    assert main_line.startswith("   1  served  ")
    assert beside_line.startswith("   2          ")
    assert beside_line.endswith("  beside, weight 0, shadow 1")
    assert main(["--alone", *where]) == 0
    assert main(["--alone", *where]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tiny: version 2 is not served beside another any more",
        "tiny: no version was beside another",
    ]
    assert main(["--beside", "1", *where]) == 1
    assert "Version 1 of tiny is the one that is served" in capsys.readouterr().err
    for words, said in (
        (["--weight", "0.1"], "give --beside"),
        (["--beside", "2", "--weight", "2"], "'2' is no share: give a number from 0 to 1"),
        (["--beside", "2", "--shadow", "x"], "'x' is no share: give a number from 0 to 1"),
        (["--min-agreement", "nan"], "'nan' is no share: give a number from 0 to 1"),
    ):
        with pytest.raises(SystemExit):
            main([*words, *where])
        assert said in capsys.readouterr().err
    assert main(["tiny", *where[:2], "--model", "tiny.v3"]) == 1
    assert "ends like a version beside another" in capsys.readouterr().err


def test_a_table_is_measured_by_a_command(
    tiny_source: TinySource, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`calibrate` writes the table and says on how many pictures."""
    out = tmp_path / "table.json"
    words = ["calibrate", "tiny", "--calibration", str(photos), "--calibration-part", "1/2", "--out", str(out)]
    assert main([*words, "--work", str(tmp_path)]) == 0
    assert "ranges from 12 pictures" in capsys.readouterr().out
    assert f"calibrate tiny --calibration {photos.name} --calibration-part 1/2" in out.read_text()


def test_the_module_runs() -> None:
    """`python -m build_engines --help` names the other commands."""
    import subprocess

    done = subprocess.run([sys.executable, "-m", "build_engines", "--help"], capture_output=True, text=True, check=True)
    assert "tune --help" in done.stdout
    assert "calibrate SOURCE" in done.stdout


def test_what_was_chosen_for_gpus_is_left_alone_there(
    tiny_source: TinySource, order: Order, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An automatic build for TensorRT minds the version that GPU servers read, not the one for CPUs."""
    asked = []

    def chosen(_: Entry, variant: str, __: str) -> str:
        asked.append(variant)
        return "it was chosen"

    monkeypatch.setattr("build_engines.__main__.chosen", chosen)
    where = ["--repository", str(order.repository), "--model", "tiny", "--unless-chosen"]
    assert main(["tiny", *where, "--target", "tensorrt"]) == 0
    assert main(["tiny", *where]) == 0
    assert asked == ["", "cpu"]
