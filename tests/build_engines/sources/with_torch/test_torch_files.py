from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.errors import GraphError, SourceError
from build_engines.preprocessing import Normalisation
from build_engines.sources import find_source
from tests.build_engines.sources.with_torch.conftest import assert_same, noise

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

NORMALISATION = Normalisation(16, "BGR", (100.0, 110.0, 120.0), (40.0, 50.0, 60.0))


def network(*behind: Any) -> Any:
    """A small convolutional network of five classes, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        last = torch.nn.Linear(8, 5)
        torch.nn.init.normal_(last.weight, std=3)
        return torch.nn.Sequential(*layers, last, *behind).eval()


def exported(module: Any, path: Path, *, free: bool = True) -> Path:
    """Writes an exported program."""
    pictures = torch.zeros(2 if free else 1, 3, 16, 16)
    shapes = ({0: torch.export.Dim("batch")},) if free else None
    torch.export.save(torch.export.export(module, (pictures,), dynamic_shapes=shapes), path)
    return path


def scripted(module: Any, path: Path) -> Path:
    """Writes TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(path))
    return path


def probabilities(module: Any, pixels: Any) -> Any:
    """Of `module` behind a softmax."""
    x = (pixels - np.asarray(NORMALISATION.mean)) / np.asarray(NORMALISATION.std)
    with torch.no_grad():
        return module(torch.tensor(x.transpose(0, 3, 1, 2), dtype=torch.float32)).softmax(1)


@pytest.mark.parametrize("free", [True, False])
def test_an_exported_program_is_served(tmp_path: Path, free: bool) -> None:
    """With a free batch or for one picture: the graph gives what the program gives."""
    source = find_source(str(exported(network(), tmp_path / "model.pt2", free=free)))
    found = source.load(NORMALISATION)
    np.testing.assert_allclose(assert_same(found, 16), probabilities(network(), noise(5, 16)), atol=1e-5)
    assert source.preprocess() is None
    assert source.identity()["weights"] == "file"


@pytest.mark.parametrize("ending", [".pt", ".ts"])
def test_torchscript_is_served(tmp_path: Path, ending: str) -> None:
    """The graph gives what the script gives, and there is a module for Triton's PyTorch backend."""
    found = find_source(str(scripted(network(), tmp_path / f"model{ending}"))).load(NORMALISATION)
    answers = assert_same(found, 16)
    np.testing.assert_allclose(answers, probabilities(network(), noise(5, 16)), atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(found.module(torch.tensor(noise(5, 16))), answers, atol=1e-5)


def test_probabilities_stay_what_they_are(tmp_path: Path) -> None:
    """No second softmax is put behind a first one."""
    path = scripted(network(torch.nn.Softmax(1)), tmp_path / "model.ts")
    answers = assert_same(find_source(str(path)).load(NORMALISATION), 16)
    np.testing.assert_allclose(answers, probabilities(network(), noise(5, 16)), atol=1e-5)


@pytest.mark.parametrize("name", ["weights.pt", "weights.ts", "weights.pt2"])
def test_a_state_dict_says_how_to_use_it(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Weights alone are no network; torch's own warnings about the file are not shown."""
    torch.save(network().state_dict(), tmp_path / name)
    with pytest.raises(SourceError, match=r"name the network and give this file with --weights"):
        find_source(str(tmp_path / name)).load(NORMALISATION)
    assert tuple(capfd.readouterr()) == ("", "")


def test_another_size_is_named(tmp_path: Path) -> None:
    """A program for pictures of 16 pixels does not get pictures of 20."""
    path = exported(network(), tmp_path / "model.pt2")
    other = Normalisation(20, "RGB", NORMALISATION.mean, NORMALISATION.std)
    with pytest.raises(SourceError, match=r"pictures of 16 pixels, and preprocess\.json has the size 20"):
        find_source(str(path)).load(other)


def test_a_script_that_takes_something_else_is_named(tmp_path: Path) -> None:
    """A network without pictures cannot be exported for pictures."""
    path = scripted(torch.nn.Linear(4, 2), tmp_path / "model.ts")
    with pytest.raises((GraphError, SourceError), match=r"model\.ts"):
        find_source(str(path)).load(NORMALISATION)
