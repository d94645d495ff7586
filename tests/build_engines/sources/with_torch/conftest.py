"""Networks and state dicts for tests with torch."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from build_engines.preprocessing import Preprocessing
from build_engines.sources import OUTPUTS, Network, Source

# As long as they live, torchvision's operators have a name.
_libraries: list[Any] = []


def _import_torchvision() -> None:
    """torchvision is often linked against a torch with CUDA, and its operators do not load beside one without.
    The classifiers need none of them: their names are enough, so that it can be imported."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)
        import torchvision  # noqa: F401


if importlib.util.find_spec("torch") and importlib.util.find_spec("torchvision"):
    _import_torchvision()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test downloads weights."""
    import huggingface_hub
    import torch

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)


def shaken(network: Any) -> dict[str, Any]:
    """A state dict with which every weight and every picture makes a difference, always the same.

    New networks have many zeros and ones, and answer nearly the same to everything.
    """
    import torch

    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in network.named_parameters():
            if name in ("cls_token", "pos_embed"):
                value.normal_(0, 0.2, generator=random)
            elif value.dim() > 1:
                value.normal_(0, 1.5 / value[0].numel() ** 0.5, generator=random)
            elif name.endswith(("weight", "gamma")):
                value.uniform_(0.5, 1.5, generator=random)
            else:
                value.normal_(0, 0.1, generator=random)
        norms = [part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        if norms:  # their statistics are those of pictures
            network.train()(torch.tensor(noise(8, 96)).permute(0, 3, 1, 2) / 60 - 2)
    state: dict[str, Any] = network.state_dict()
    return state


def loaded(source: Source) -> Network:
    """The source with its own recipe."""
    recipe = source.preprocess()
    assert recipe is not None
    return source.load(Preprocessing.of(recipe).normalisation)


def noise(count: int, size: int) -> npt.NDArray[np.uint8]:
    """Pictures of coarse and fine noise, each of another mean."""
    random = np.random.default_rng(count)
    coarse = random.integers(0, 200, (count, 4, 4, 3)).repeat(-(-size // 4), 1).repeat(-(-size // 4), 2)
    return np.asarray(coarse[:, :size, :size] + random.integers(0, 56, (count, size, size, 3)), np.uint8)


def assert_same(network: Network, size: int) -> npt.NDArray[np.float32]:
    """The graph gives what the reference gives, for one picture and for five: to 1e-4 of what pictures change.

    Returns the answers for five pictures.
    """
    session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
    for count in (1, 5):
        pixels = noise(count, size)
        (answers,) = session.run([OUTPUTS[network.task]], {"PREPROCESSED_IMAGE": pixels})
        expected = network.reference(pixels)
        assert answers.shape == expected.shape == (count, network.width)
        assert answers.dtype == expected.dtype == np.float32
    spread = float(np.ptp(expected, axis=0).max())
    assert spread > 0.05
    assert float(np.abs(answers - expected).max()) < 1e-4 * spread
    result: npt.NDArray[np.float32] = answers
    return result
