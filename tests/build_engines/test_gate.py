from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from build_engines import gate
from build_engines.errors import GateError

Answers = npt.NDArray[np.float32]

SOURCE = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]], np.float32)
SHIFTED = SOURCE + np.array([[0.5, 0, -0.5]], np.float32)
NONE = np.full(4, -1)


def test_the_same_answers_agree() -> None:
    """No difference: deviation 0, cosine 1, the same best class."""
    agreement = gate.compare(SOURCE, SOURCE.copy(), task="classify", truth=NONE)
    assert (agreement.deviation, agreement.largest, agreement.top1) == (0, 0, 1)
    assert agreement.cosine == pytest.approx(1)
    assert (agreement.labelled, agreement.accuracy, agreement.source_accuracy) == (0, None, None)
    assert gate.faults_of_agreement(agreement, gate.LIMITS["fp32"]) == []


def test_deviation_is_relative_to_what_tells_images_apart() -> None:
    """An engine that answers every image alike deviates by 1, however small the numbers are."""
    for scale in (1, 1e-6):
        source = (1 / 3 + scale * (SOURCE - SOURCE.mean(axis=0))).astype(np.float64)
        same = np.broadcast_to(source.mean(axis=0), source.shape)
        assert gate.compare(source, same, task="classify", truth=NONE).deviation == pytest.approx(1)
    constant = np.ones((4, 3), np.float32)
    assert gate.compare(constant, constant, task="classify", truth=NONE).deviation == 0
    assert gate.compare(constant, SOURCE, task="classify", truth=NONE).deviation == float("inf")


def test_features_have_no_best_class() -> None:
    """For features the cosine counts, and neither top-1 nor accuracy is made up."""
    agreement = gate.compare(SOURCE, -SOURCE, task="embed", truth=np.zeros(4, np.int64))
    assert (agreement.top1, agreement.accuracy, agreement.labelled) == (None, None, 0)
    assert agreement.cosine == pytest.approx(-1)
    deviates, cosine = gate.faults_of_agreement(agreement, gate.LIMITS["int8"])
    assert "it deviates" in deviates
    assert "its features of one picture have the cosine -1.0000 to the source's, less than 0.8" in cosine


def unit(features: npt.NDArray[Any]) -> Answers:
    """Each feature divided by its length."""
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True), np.float32)


FEATURES = unit(np.random.default_rng(4).normal(0, 1, (40, 256)) + 1)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_features_of_length_1_are_judged_like_any_others(precision: str) -> None:
    """Their numbers are small and much alike; still one wrong picture of forty is seen, and so is a little noise in all
    of them, while what a precision costs is let through."""
    random = np.random.default_rng(5)
    costs = {"fp32": 2e-5, "fp16": 5e-4, "bf16": 4e-3, "int8": 0.03}[precision]
    noise = random.normal(0, costs * np.abs(FEATURES).mean(), FEATURES.shape)
    cases = [(unit(FEATURES + noise), True), (unit(FEATURES + 100 * noise), False)]
    one_wrong = FEATURES.copy()
    one_wrong[7] = unit(random.normal(0, 1, (1, 256)))[0]
    for engine, passes in [*cases, (one_wrong, False)]:
        agreement = gate.compare(FEATURES, engine, task="embed", truth=np.full(40, -1))
        assert (gate.faults_of_agreement(agreement, gate.LIMITS[precision]) == []) is passes


def test_a_promise_of_length_1_is_kept() -> None:
    """To half a percent, which BF16 needs, and only where it was made."""

    def faults(features: Answers, normalised: bool) -> list[str]:
        return gate.faults_of_answers(features, features[:4], task="embed", images=40, width=256, normalised=normalised)

    assert faults(FEATURES, True) == []
    assert faults(FEATURES * np.float32(1.004), True) == []
    assert faults(FEATURES * np.float32(1.01), False) == []
    longer = FEATURES.copy()
    longer[3] *= 1.01
    assert faults(longer, True) == ["its features have lengths from 1.000 to 1.010, not 1"]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_features_may_not_depend_on_the_batch_at_any_scale(scale: float) -> None:
    """A thousandth of a feature's length is rounding, a hundredth is a neighbour that shows."""
    features = FEATURES * np.float32(scale)
    for part, passes in ((5e-4, True), (1e-2, False)):
        alone = features[:4] + part * np.roll(features, 1, axis=0)[:4]
        faults = gate.faults_of_answers(features, alone, task="embed", images=40, width=256)
        assert (faults == []) is passes


def test_a_source_that_is_sure_of_every_picture_is_one() -> None:
    """A moderator's probabilities for harmless photos are tiny, and differ by a multiple: it was trained. Those of a
    network without weights differ by nothing, or by rounding."""
    tiny = np.geomspace(1e-6, 8e-4, 30, dtype=np.float32)
    sure = np.stack([1 - tiny, tiny], axis=1)
    assert gate.faults_of_source(sure, task="classify") == []
    even = np.full((30, 1000), 1e-3, np.float32)
    for answers in (even, even * (1 + 1e-4 * SOURCE[0, 0] * np.arange(30, dtype=np.float32)[:, None] / 30)):
        (fault,) = gate.faults_of_source(answers, task="classify")
        assert "alike to every picture" in fault
    assert gate.faults_of_source(FEATURES, task="embed") == []
    for answers in (np.ones((30, 8), np.float32), unit(1000 + np.random.default_rng(0).normal(0, 0.1, (30, 8)))):
        assert len(gate.faults_of_source(answers, task="embed")) == 1


def test_rounding_is_no_deviation() -> None:
    """Where a source hardly tells pictures apart, FP32's own error would be a large part of what does."""
    tiny = np.geomspace(1e-6, 2e-5, 30, dtype=np.float32)
    source = np.stack([1 - tiny, tiny], axis=1)
    engine = source + np.float32(5e-6) * np.array([[-1, 1]], np.float32) * (np.arange(30)[:, None] % 2)
    agreement = gate.compare(source, engine, task="classify", truth=np.full(30, -1))
    assert agreement.deviation > 0.1
    assert gate.faults_of_agreement(agreement, gate.LIMITS["fp32"]) == []
    doubled = np.stack([1 - 2 * tiny, 2 * tiny], axis=1)
    other = gate.compare(source, doubled, task="classify", truth=np.full(30, -1))
    assert len(gate.faults_of_agreement(other, gate.LIMITS["fp32"])) == 1


def test_accuracy_lost_is_refused_where_enough_is_labelled() -> None:
    """1.0 point of 100 labelled pictures is allowed, 2 are not; 50 pictures say too little."""
    source = np.eye(2, dtype=np.float32)[np.zeros(100, int)]
    for wrong, refused in ((1, False), (2, True)):
        engine = source.copy()
        engine[:wrong] = engine[:wrong, ::-1]
        lenient = gate.Limits(top1=0, deviation=float("inf"), layers=0)
        agreement = gate.compare(source, engine, task="classify", truth=np.zeros(100, np.int64))
        assert (agreement.source_accuracy, agreement.accuracy) == (1, 1 - wrong / 100)
        assert bool(gate.faults_of_agreement(agreement, lenient)) is refused
        few = gate.compare(source[:50], engine[:50], task="classify", truth=np.zeros(50, np.int64))
        assert gate.faults_of_agreement(few, lenient) == []


@pytest.mark.parametrize(
    ("answers", "alone", "words"),
    [
        pytest.param(SOURCE[:, :2], SOURCE, "shape", id="shape"),
        pytest.param(SOURCE[:3], SOURCE, "shape", id="too few"),
        pytest.param(SOURCE * np.nan, SOURCE, "not finite", id="NaN"),
        pytest.param(SOURCE * 2, SOURCE * 2, "sum to 1", id="sum"),
        pytest.param(SHIFTED, SHIFTED, "sum to 1", id="negative"),
        pytest.param(SOURCE, SOURCE[::-1], "depend on the batch", id="batch"),
    ],
)
def test_answers_that_no_classifier_gives_are_refused(answers: Answers, alone: Answers, words: str) -> None:
    """Another shape, NaN, no probabilities, or answers that change with the neighbours."""
    (fault,) = gate.faults_of_answers(answers, alone, task="classify", images=4, width=3)
    assert words in fault
    assert gate.faults_of_answers(SOURCE, SOURCE[:2], task="classify", images=4, width=3) == []


def test_features_need_not_sum_to_one() -> None:
    """They may be negative and of any length."""
    assert gate.faults_of_answers(-9 * SOURCE, -9 * SOURCE, task="embed", images=4, width=3) == []


@pytest.mark.parametrize(
    ("layers", "precision", "words"),
    [
        ({"fp32": 53}, "fp16", "fp16 was asked for, and of 53 layers that compute, 53 in fp32 run"),
        ({"fp32": 33, "int8": 20}, "int8", "33 in fp32, 20 in int8"),
        ({}, "fp32", "does not say"),
    ],
)
def test_a_precision_that_does_not_run_is_refused(layers: dict[str, int], precision: str, words: str) -> None:
    """What was asked for is compared with what the runtime really does."""
    (fault,) = gate.faults_of_layers(layers, precision, gate.LIMITS[precision])
    assert words in fault


def test_a_few_layers_may_stay_in_full_precision() -> None:
    """The first and the last layer often do, and on GPUs what ModelOpt leaves out; the certificate has the numbers."""
    assert gate.faults_of_layers({"int8": 50, "fp32": 20}, "int8", gate.LIMITS["int8"]) == []


@pytest.mark.parametrize(("shift", "way"), [(1, "up"), (-1, "down")])
def test_labels_that_are_off_by_one_are_found(shift: int, way: str) -> None:
    """The fault says how many are right now, how many would be, and which way the labels must go."""
    classes = np.array([3, 5, 7, 2, 4])
    answers = np.eye(10, dtype=np.float32)[classes]
    (fault,) = gate.faults_of_labels(answers, classes + shift)
    assert f"0 of 5 labelled pictures are right, and 5 would be with every label one line {way}" in fault
    assert gate.faults_of_labels(answers, classes) == []
    assert gate.faults_of_labels(answers, np.full(5, -1)) == []


def test_labels_no_better_than_chance_are_refused() -> None:
    """Shuffled labels: a model that is right by chance only does not have these labels."""
    classes = np.arange(0, 100, 5)
    answers = np.eye(100, dtype=np.float32)[classes]
    (fault,) = gate.faults_of_labels(answers, (classes + 50) % 100)
    assert "as by chance" in fault


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cat\ndog\n", "2 labels, and the model has 3 classes"),
        (b"cat\ndog\nfish", "does not end with a newline"),
        (b"cat\r\ndog\r\nfish\r\n", "Windows line ends"),
        (b"cat\n\nfish\n", "an empty line, number 2"),
        (b"\xff\n", "not UTF-8"),
    ],
)
def test_labels_that_do_not_fit_are_refused(content: bytes, words: str) -> None:
    """Exactly a line for each class, or nothing is published."""
    with pytest.raises(GateError, match=words):
        gate.read_labels(content, 3)
    assert gate.read_labels(b"cat\ndog\nfish\n", 3) == ("cat", "dog", "fish")


def test_the_worst_come_first() -> None:
    """A report shows the pictures whose answers differ most."""
    engine = SOURCE.copy()
    engine[2] += [0.3, -0.3, 0]
    engine[0] += [0.1, -0.1, 0]
    assert list(gate.worst(SOURCE, engine, 2)) == [2, 0]
