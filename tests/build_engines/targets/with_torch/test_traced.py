"""TorchScript for real; runs where torch is installed (make test-torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.errors import TargetError
from build_engines.stages import Stages
from build_engines.targets import Calibration
from build_engines.targets.torchscript import SERVING, TorchScript, trace
from tests.build_engines.targets.fakes import SIZE, WIDTH, network

torch = pytest.importorskip("torch")


def module(habit: str = "") -> Any:
    """Means of the channels, multiplied by a matrix; with a `habit` that a trace does not survive."""

    base: Any = torch.nn.Module

    class Means(base):  # type: ignore[misc]  # torch is not everywhere
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(3, WIDTH)

        def forward(self, pixels: Any) -> Any:
            x = pixels.float() / 255
            if habit == "device":
                x = x + torch.ones(3, device=x.device)
            if habit == "batch" and len(pixels) == 5:
                x = x * 2
            if habit == "error":
                raise ValueError("not today")
            return self.head(x.mean(dim=(1, 2)))

    torch.manual_seed(0)
    return Means()


def test_a_traced_module_answers_as_itself(tmp_path: Path) -> None:
    """Any number of pictures, through the file as it is saved."""
    source = module()
    engine = TorchScript().build(network(source), "fp32", Calibration(), Stages(tmp_path))
    pixels = np.random.default_rng(0).integers(0, 256, (SERVING.max_batch + 3, SIZE, SIZE, 3), dtype=np.uint8)
    with torch.no_grad():
        expected = source.to("cpu")(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(engine.run(pixels), expected, atol=1e-5)
    assert engine.layers == {"fp32": 1}
    assert engine.serving is SERVING
    assert list(engine.files) == ["model.pt"]


@pytest.mark.parametrize(
    ("habit", "words"),
    [
        ("batch", r"answers otherwise than the module"),
        ("device", r"on a device of its own choice \(\w+"),
        ("error", r"cannot be traced \(not today\)"),
    ],
)
def test_what_a_trace_cannot_hold(habit: str, words: str) -> None:
    """A module that looks at the batch, places tensors itself or fails is refused, not served wrongly."""
    with pytest.raises(TargetError, match=words):
        trace(module(habit), SIZE, "cuda" if torch.cuda.is_available() else "cpu")
