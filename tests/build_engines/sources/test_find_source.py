from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.errors import SourceError
from build_engines.sources import Wish, find_source
from build_engines.sources.packaged import PACKAGED


def test_a_packaged_model_is_found_by_its_name() -> None:
    """The default model needs no library but its own."""
    assert find_source("efficientnet_lite0") is PACKAGED["efficientnet_lite0"]


def test_a_wish_reaches_the_source() -> None:
    """What the source cannot do is refused when it is looked for."""
    with pytest.raises(SourceError, match="size 224, not 300"):
        find_source("efficientnet_lite0", Wish(size=300))


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.pt", "model.ts"])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    """A path with the ending of a network is never taken for a network's name."""
    with pytest.raises(SourceError, match=f"There is no file .*{name}"):
        find_source(str(tmp_path / name))


@pytest.mark.parametrize("name", ["weights.pth", "model.safetensors", "last.ckpt"])
def test_weights_alone_are_no_model(name: str) -> None:
    """For a file of weights, the error says how to use it."""
    with pytest.raises(SourceError, match=r"weights only: name the network, .*--weights"):
        find_source(name)


@pytest.mark.parametrize("wish", [Wish(weights="random"), Wish(classes=3), Wish(size=64)])
def test_a_whole_network_cannot_be_changed(wish: Wish, tmp_path: Path) -> None:
    """A file that holds a network has its weights, classes and size in it."""
    with pytest.raises(SourceError, match="whole network"):
        find_source(str(tmp_path / "model.onnx"), wish)


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    """The error lists the tasks."""
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(SourceError, match="no task detect: classify, embed"):
        find_source(str(path), Wish(task="detect"))


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only torch's libraries can know: what there is without them, a near match, and the command."""
    for library in ("torch", "torchvision"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SourceError, match=r"Did you mean efficientnet_lite0\? .* pip install 'tidegate\[torch\]'"):
        find_source("efficientnet_lite1")


def test_importing_the_sources_is_cheap() -> None:
    """Neither numpy nor onnx nor torch is loaded by the interface, the packaged models and the search for files."""
    program = "import build_engines.sources.packaged, build_engines.sources.torch_models, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "numpy", "onnxruntime", "torch", "timm"} & set(loaded)
