"""`python -m benchmarks.features`: what INT8 and the length of features change, on the labelled photos in ../shared.

Features of EfficientNet-Lite0 for 500 photos, in FP32 and in INT8 by the table that ships. How far INT8's are from
FP32's; whether neighbours stay the same; and how often a linear probe names the right one of seven groups, trained in
one precision and asked in the same or the other (15 splits, four fifths to learn from). Then by which measure the
nearest other photo is of the same group.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold

from build_engines.calibration import TABLES, Ranges
from build_engines.preprocessing import Preprocessing
from build_engines.sources import Wish, find_source
from build_engines.stages import Stages
from build_engines.targets import Calibration
from build_engines.targets.onnx_on_cpu import OPENVINO
from tests.servers import PHOTOS
from tests.triton.test_features import group

SOURCE = "efficientnet_lite0"
NEIGHBOURS = 10

Rows = npt.NDArray[np.float32]


def main() -> None:
    """Prints two tables."""
    with (PHOTOS / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    groups = np.array([group(int(row["class_id"]), row["name"]) for row in rows])
    fp32, int8 = features([PHOTOS / row["file"] for row in rows])
    unit, unit_int8 = of_length_1(fp32), of_length_1(int8)
    cosines = (unit * unit_int8).sum(axis=1)[1::2]  # the other half gave the ranges
    print(f"INT8 against FP32: cosine {cosines.mean():.4f}, at least {cosines.min():.4f}")
    near, near_int8 = neighbours(unit @ unit.T), neighbours(unit_int8 @ unit_int8.T)
    shared = np.mean([len(set(a) & set(b)) for a, b in zip(near, near_int8, strict=True)]) / NEIGHBOURS
    print(f"same nearest photo {(near[:, 0] == near_int8[:, 0]).mean():.1%}; of the nearest {NEIGHBOURS} {shared:.1%}")
    for name, learnt, asked in (
        ("FP32", unit, unit),
        ("INT8", unit_int8, unit_int8),
        ("trained on FP32, asked in INT8", unit, unit_int8),
    ):
        right = probe(learnt, asked, groups)
        print(f"linear probe, {name}: {np.mean(right):.1%} ± {np.std(right) / len(right) ** 0.5:.1%}")
    squares = (fp32**2).sum(axis=1)
    print(f"lengths from {squares.min() ** 0.5:.1f} to {squares.max() ** 0.5:.1f}")
    for name, table in (
        ("scalar product, as the network gives them", fp32 @ fp32.T),
        ("distance, as the network gives them", 2 * fp32 @ fp32.T - squares[None]),
        ("cosine, which is either of these with length 1", unit @ unit.T),
    ):
        same = (groups[neighbours(table)[:, 0]] == groups).mean()
        print(f"nearest photo of the same group by {name}: {same:.1%}")


def features(photos: list[Path]) -> tuple[Rows, Rows]:
    """In FP32 and in INT8, as the network gives them: FP32 [n, 1280] each."""
    source = find_source(SOURCE, Wish(task="embed", normalise="none"))
    recipe = source.preprocess()
    assert recipe is not None
    preprocessing = Preprocessing.of(recipe)
    network = source.load(preprocessing.normalisation)
    pixels = np.stack([preprocessing.pixels(photo.read_bytes()) for photo in photos])
    ranges = Ranges.from_json((TABLES / f"{SOURCE}.json").read_bytes()).within(network.graph)
    stages = Stages(Path(".build_engines") / "features")
    exact = OPENVINO.build(network, "fp32", Calibration(), stages)
    quantised = OPENVINO.build(network, "int8", Calibration(ranges=ranges), stages)
    return exact.run(pixels), quantised.run(pixels)


def of_length_1(rows: Rows) -> Rows:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def neighbours(near: Rows) -> npt.NDArray[np.int64]:
    """The nearest others of each row of a matrix of nearness, nearest first; it is changed."""
    np.fill_diagonal(near, -np.inf)
    return np.argsort(-near, axis=1)[:, :NEIGHBOURS]


def probe(learnt: Rows, asked: Rows, groups: npt.NDArray[np.str_]) -> list[float]:
    """Shares of right answers, one for each split."""
    splits = RepeatedStratifiedKFold(n_splits=5, n_repeats=3, random_state=0)
    right = []
    for learn, judge in splits.split(learnt, groups):
        model = LogisticRegression(C=100, max_iter=500).fit(learnt[learn], groups[learn])
        right.append(float(model.score(asked[judge], groups[judge])))
    return right


if __name__ == "__main__":
    main()
