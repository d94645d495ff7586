"""Features of real photos through the gateway: the same in any company, of unit length, and good to learn from."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from gateway.triton.local import LocalTriton
from tests.servers import PHOTOS, ROOT, executions

SAMPLES = ROOT / "examples" / "photos"
labelled = pytest.mark.skipif(not PHOTOS.is_dir(), reason="the labelled photos are not on this machine")
Features = NDArray[np.float32]


def asked(gate: httpx.Client, photos: Sequence[bytes], **parameters: int) -> list[dict[str, Any]]:
    """The results of one request."""
    files = [("files", photo) for photo in photos]
    query: dict[str, str | int] = {"encoding_format": "base64", **parameters}
    answer = gate.post("/v1/embed", params=query, files=files)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    assert all(result["status"] == "ok" for result in results), answer.text
    return results


def features(results: Sequence[dict[str, Any]]) -> Features:
    """FP32 [n, dim]."""
    return np.stack([np.frombuffer(base64.b64decode(result["embedding"]), "<f4") for result in results])


def twenty() -> list[bytes]:
    """The sample photos and pieces of them, in several formats: each a file of a length of its own."""
    photos = [path.read_bytes() for path in sorted(SAMPLES.glob("*.jpg"))]
    pieces = []
    for number in range(20 - len(photos)):
        with Image.open(io.BytesIO(photos[number % len(photos)])) as photo:
            side = 100 + 9 * number
            piece = photo.crop((11 * number, 6 * number, 11 * number + side, 6 * number + side))
        file = io.BytesIO()
        piece.save(file, ("JPEG", "PNG", "WEBP")[number // 3 % 3])
        pieces.append(file.getvalue())
    return photos + pieces


def cosines(one: Features, other: Features) -> Features:
    """Of each row with the row of the same number, [n]."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((one * other).sum(1) / lengths, np.float32)


def test_the_same_in_any_company(gate: httpx.Client) -> None:
    """Twenty pictures alone, in one request and all at the same time have the same features, of the promised length."""
    photos = twenty()
    alone = np.concatenate([features(asked(gate, [photo])) for photo in photos])
    together = features(asked(gate, photos))
    with ThreadPoolExecutor(len(photos)) as pool:
        at_once = np.concatenate(list(pool.map(lambda photo: features(asked(gate, [photo])), photos)))
    for one, other in ((alone, together), (alone, at_once), (together, at_once)):
        assert cosines(one, other).min() >= 0.9999
    # They could all be the same picture's: then the comparison above would show nothing.
    assert cosines(alone, np.roll(alone, 1, axis=0)).max() < 0.9
    assert gate.get("/v1/models/embedding_ensemble").json()["normalised"] is True
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([alone, together, at_once]), axis=1), 1, atol=1e-4)


def test_both_encodings_are_the_same_numbers(gate: httpx.Client) -> None:
    """JSON's numbers and base64 are equal to the last bit, and as many as `dim` says."""
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    answer = gate.post("/v1/embed", content=photo).json()
    numbers = np.array(answer["results"][0]["embedding"], np.float32)
    assert numbers.shape == (answer["dim"],)
    np.testing.assert_array_equal(numbers, features(asked(gate, [photo]))[0])


def work(triton: LocalTriton) -> NDArray[np.int64]:
    """How often preprocessor, embedder and classifier were executed so far, [3]."""
    steps = ("preprocessor", "embedder", "classifier")
    return np.array([executions(triton.ports.metrics, step) for step in steps])


def test_labels_with_one_decoding(gate: httpx.Client, triton: LocalTriton) -> None:
    """With `classify` a photo gets what `/v1/classify` says, and the preprocessor works once for both."""
    photos = twenty()
    asked(gate, photos[:1])  # the gateway has met the model
    before = work(triton)
    both = [asked(gate, [photo], classify=1, top_k=7)[0] for photo in photos]
    done = work(triton) - before
    assert done[1] == len(photos)
    for step in (0, 2):  # these the gateway probes every few seconds, too; twice as often would be 40
        assert len(photos) <= done[step] < 1.5 * len(photos)
    for photo, result in zip(photos, both, strict=True):
        (classified,) = gate.post("/v1/classify", params={"top_k": 7}, content=photo).json()["results"]
        assert result["predictions"] == classified["predictions"]
    assert cosines(features(both), features(asked(gate, photos))).min() >= 0.9999


def test_nobody_pays_for_labels_that_nobody_asked_for(gate: httpx.Client, triton: LocalTriton) -> None:
    """Features alone do not run the classifier."""
    photos = twenty()
    before = work(triton)
    for photo in photos:
        asked(gate, [photo])
    done = work(triton) - before
    assert done[1] == len(photos)
    assert done[2] < len(photos) / 2  # nothing but the gateway's probes


VEHICLES = (
    "airliner;amphibian;beach wagon;bicycle-built-for-two;bobsled;bullet train;cab;canoe;catamaran;container ship;"
    "fireboat;gondola;half track;jinrikisha;liner;minibus;minivan;mobile home;motor scooter;oxcart;paddlewheel;plow;"
    "police van;schooner;snowmobile;space shuttle;speedboat;steam locomotive;thresher;tow truck;tractor;tricycle;"
    "trolleybus;unicycle;yawl"
)


def group(class_id: int, name: str) -> str:
    """What kind of thing a class of ImageNet is: its numbers follow WordNet's tree, but for the vehicles."""
    if class_id in {*range(7, 25), *range(80, 101), *range(127, 147)}:
        return "birds"
    if 151 <= class_id <= 268:
        return "dogs"
    if class_id in {*range(101, 107), *range(147, 151), *range(269, 300), *range(330, 389)}:
        return "other mammals"
    if class_id <= 397:
        return "fish, reptiles, insects"
    if name in VEHICLES.split(";"):
        return "vehicles"
    return "food and plants" if 924 <= class_id <= 969 or class_id >= 984 else "other things"


@labelled
def test_groups_are_learned_from_half(gate: httpx.Client) -> None:
    """Of 500 photos in seven groups half is enough: a linear probe and 5-NN are far above chance on the other half.

    The network has its own 1,000 classes; of the groups it knows nothing. `pytest -s` shows the figures.
    """
    with (PHOTOS / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    groups = np.array([group(int(row["class_id"]), row["name"]) for row in rows])
    found = np.concatenate(
        [
            features(asked(gate, [(PHOTOS / row["file"]).read_bytes() for row in rows[start : start + 50]]))
            for start in range(0, len(rows), 50)
        ]
    )
    learn, judge = train_test_split(np.arange(len(rows)), test_size=0.5, stratify=groups, random_state=0)
    right, balanced = {}, {}
    for name, learner in (
        ("chance", DummyClassifier()),
        ("5-NN", KNeighborsClassifier(5, metric="cosine")),
        ("linear probe", LogisticRegression(C=100, class_weight="balanced", max_iter=5000)),
    ):
        given = learner.fit(found[learn], groups[learn]).predict(found[judge])
        right[name] = float((given == groups[judge]).mean())
        balanced[name] = float(balanced_accuracy_score(groups[judge], given))
        print(f"{name:<13} right {right[name]:.1%}, mean over the groups {balanced[name]:.1%}")
    for name in ("5-NN", "linear probe"):
        assert right[name] >= right["chance"] + 0.25
        assert balanced[name] >= balanced["chance"] + 0.45
