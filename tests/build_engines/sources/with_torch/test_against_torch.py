"""The built graph against the original network; runs where torch is installed (pip install 'tidegate[torch]')."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from PIL import Image

from build_engines.sources.checkpoint import read_checkpoint
from build_engines.sources.outputs import synthetic_pictures
from build_engines.sources.packaged import PACKAGED

torch = pytest.importorskip("torch")
efficientnet_lite_pytorch = pytest.importorskip("efficientnet_lite_pytorch")

PHOTOS = Path(__file__).parents[5] / "shared" / "data" / "photos"


@pytest.fixture(scope="module")
def original() -> Any:
    """The original network with its weights, in evaluation mode."""
    content = PACKAGED["efficientnet_lite0"].packaged().content
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    network = efficientnet_lite_pytorch.EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(state)
    return network.eval()


def probabilities_of(network: Any, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The original network's answer to UINT8 [n, 224, 224, 3], normalised as its authors say."""
    with torch.no_grad():
        normalised = (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() - 127) / 128
        result: npt.NDArray[np.float32] = torch.softmax(network(normalised), dim=1).numpy()
    return result


def largest_difference(network: Any, model: bytes, pictures: npt.NDArray[np.uint8]) -> float:
    """The largest difference of any probability between the two."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    built = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": pictures})[0]
    return float(np.abs(built - probabilities_of(network, pictures)).max())


def test_synthetic_pictures_get_the_same_probabilities(original: Any, lite0: bytes) -> None:
    """Black, ramps, noise, white and solid colours: within 1e-4 of the original network."""
    colours = np.array([(255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255)], np.uint8)
    solid = np.broadcast_to(colours[:, None, None], (4, 224, 224, 3))
    pictures = np.concatenate([synthetic_pictures(224), solid])
    assert largest_difference(original, lite0, pictures) < 1e-4


@pytest.mark.skipif(not PHOTOS.exists(), reason="the photos are not beside this checkout")
def test_photos_get_the_same_probabilities(original: Any, lite0: bytes) -> None:
    """Twenty photos: within 1e-4 of the original network."""
    with (PHOTOS / "labels.csv").open(newline="") as file:
        names = [row["file"] for row in csv.DictReader(file)][::25]
    pictures = np.stack(
        [np.asarray(Image.open(PHOTOS / name).convert("RGB").resize((224, 224)), np.uint8) for name in names]
    )
    assert len(pictures) == 20
    assert largest_difference(original, lite0, pictures) < 1e-4


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_torch_saves_is_read(zipped: bool, protocol: int) -> None:
    """Both formats of torch.save, with every dtype, a parameter, strides and a shared storage."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    state: dict[str, Any] = {
        "parameter": torch.nn.Parameter(base[0]),
        "permuted": base.permute(2, 0, 1),
        "part": base[1, 1:, ::2],
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.tensor([1.5, -2.25]).bfloat16(),
        **{
            str(dtype): torch.tensor([1, 2, 3]).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        },
    }
    stream = io.BytesIO()
    torch.save(state, stream, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = read_checkpoint(stream.getvalue())
    assert list(found) == list(state)
    for name, tensor in state.items():
        expected = (tensor.float() if name == "bfloat16" else tensor).detach().numpy()
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


def test_a_whole_checkpoint_is_read_as_torch_reads_it() -> None:
    """Every array of the default model's checkpoint is what torch.load gives."""
    content = PACKAGED["efficientnet_lite0"].packaged().content
    expected = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    found = read_checkpoint(content)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
