from __future__ import annotations

import argparse
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import SourceError

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")
from build_engines.sources import state_dicts  # noqa: E402


def network(classes: int = 4) -> Any:
    """Two layers and a batch norm."""
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, classes))


STATE = network().state_dict()


def prefixed(prefix: str) -> dict[str, Any]:
    """The state with something in front of every name."""
    return {prefix + name: value for name, value in STATE.items()}


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"state_dict": STATE, "epoch": 7, "optimizer": {"state": {}}},
        {"model": {"state_dict": STATE}},
        {"model_state_dict": prefixed("module.")},
        {"state_dict": prefixed("model.backbone."), "args": argparse.Namespace(lr=0.1)},
        {"teacher": prefixed("backbone."), "student": {name: value * 0 for name, value in STATE.items()}},
        {"model": {name: value * 0 for name, value in STATE.items()}, "model_ema": STATE},
        prefixed("_orig_mod.module."),
    ],
    ids=lambda content: ",".join(content)[:40],
)
def test_state_dicts_are_found_where_programs_put_them(content: dict[str, Any], tmp_path: Path) -> None:
    """Nested, beside other things, behind wrappers' prefixes: the same weights come out, the better ones first."""
    torch.save(content, tmp_path / "weights.pth")
    found = state_dicts.read_state_dict(tmp_path / "weights.pth")
    assert list(found) == list(STATE)
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


def test_safetensors_are_read(tmp_path: Path) -> None:
    """A file that holds nothing but tensors."""
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(prefixed("module."), tmp_path / "weights.safetensors")
    found = state_dicts.read_state_dict(tmp_path / "weights.safetensors")
    assert found.keys() == STATE.keys()


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path) -> None:
    """What the file would do is not done, and the error says what it asked for."""
    witness = tmp_path / "witness"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(witness),)

    torch.save({"state_dict": {**STATE, "x": Hostile()}}, tmp_path / "weights.pth")
    with pytest.raises(SourceError, match=r"refused, nothing in it was run \(it asks for (posix|nt)\.mkdir\)"):
        state_dicts.read_state_dict(tmp_path / "weights.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(SourceError, match="refused"):
        state_dicts.read_state_dict(tmp_path / "plain.pth")
    assert not witness.exists()


def test_a_whole_model_is_not_a_state_dict(tmp_path: Path) -> None:
    """torch.save(model) needs the model's own code: the error says how to save it instead."""
    torch.save(network(), tmp_path / "model.pth")
    with pytest.raises(SourceError, match=r"torch\.save\(model\.state_dict\(\)"):
        state_dicts.read_state_dict(tmp_path / "model.pth")


def test_files_that_are_no_state_dicts_are_refused(tmp_path: Path) -> None:
    """A cut file, text, a list, numbers under names, safetensors that are none, and no file at all."""
    torch.save(STATE, tmp_path / "whole.pth")
    content = (tmp_path / "whole.pth").read_bytes()
    files = {"cut.pth": content[: len(content) // 2], "text.pth": b"weights", "none.safetensors": b"weights"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"x": 1}, tmp_path / "numbers.pth")
    torch.save({**STATE, "epoch": 1}, tmp_path / "mixed.pth")
    for name in (*files, "list.pth", "numbers.pth", "mixed.pth", "missing.pth", "missing.safetensors"):
        with pytest.raises(SourceError, match=name):
            state_dicts.read_state_dict(tmp_path / name)


def test_the_backbone_is_taken_from_beside_a_head() -> None:
    """Self-supervised training keeps a head that nobody serves."""
    state = {"backbone.x": STATE["0.weight"], "head.mlp.0.weight": STATE["0.bias"]}
    assert list(state_dicts.backbone_only(state)) == ["x"]
    assert state_dicts.backbone_only(STATE) is STATE


def test_the_number_of_classes_is_read_from_the_classifier() -> None:
    """Whatever the last layer is called: the side on which networks of two and three classes differ."""
    assert state_dicts.classes_in(network(9).state_dict(), network) == 9
    without = {name: value for name, value in STATE.items() if not name.startswith("2.")}
    with pytest.raises(SourceError, match=r"no classifier \(2\.weight, 2\.bias\).*--task embed"):
        state_dicts.classes_in(without, network)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"0.weight": None, "1.running_var": None}, r"They lack 0\.weight, 1\.running_var\."),
        ({"extra.bias": torch.zeros(3)}, r"no place for extra\.bias\."),
        ({"0.weight": torch.zeros(3, 5)}, r"other shapes: 0\.weight \(3, 5\) instead of \(3, 2\)\."),
        ({f"x{i}": torch.zeros(1) for i in range(5)}, r"no place for x0, x1, x2 and 2 more\."),
        ({"0.bias": torch.full((3,), torch.nan)}, r"not finite \(0\.bias\)"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: dict[str, Any], words: str) -> None:
    """Nothing is left at random values and nothing is left over without a word."""
    state = {name: value for name, value in {**STATE, **change}.items() if value is not None}
    with pytest.raises(SourceError, match=words):
        state_dicts.fit(network(), state)


def test_counters_may_be_missing() -> None:
    """Old state dicts have no num_batches_tracked, which nothing needs."""
    target = network()
    state_dicts.fit(target, {name: value for name, value in STATE.items() if "num_batches" not in name})
    assert torch.equal(target[0].weight, STATE["0.weight"])


def test_a_nest_that_holds_itself_ends(tmp_path: Path) -> None:
    """A pickle may hold a dictionary under a name of its own: refused, not followed for ever."""
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, tmp_path / "cycle.pth")
    with pytest.raises(SourceError, match="holds no state dict"):
        state_dicts.read_state_dict(tmp_path / "cycle.pth")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda: torch.eye(3).to_sparse(), id="sparse"),
        pytest.param(lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8), id="quantised"),
        pytest.param(lambda: torch.eye(3, dtype=torch.complex64), id="complex"),
    ],
)
def test_tensors_of_other_kinds_are_refused(tmp_path: Path, value: Any) -> None:
    """What a network in FP32 cannot hold is named, and nothing else is made of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about these kinds
        torch.save({"weight": value()}, tmp_path / "other.pth")
        with pytest.raises(SourceError):
            state_dicts.read_state_dict(tmp_path / "other.pth")


def test_values_beyond_fp32_are_refused() -> None:
    """A double that FP32 cannot hold would be infinity in the network."""
    state = {**STATE, "0.weight": torch.full((3, 2), 1e300, dtype=torch.float64)}
    with pytest.raises(SourceError, match="not finite"):
        state_dicts.fit(network(), state)
