"""Probabilities → predictions."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.errors import BadUpstreamResponse, ItemProblem
from gateway.predictions import Prediction, top_k, unit, usable_rows
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING

LABELS = [f"class {i}" for i in range(6)]
ROW = np.array([0.05, 0.4, 0.1, 0.3, 0.05, 0.1], dtype=np.float32)


def ids(predictions: list[Prediction]) -> list[int]:
    return [p.class_id for p in predictions]


@pytest.mark.parametrize("k", range(1, 7))
def test_largest_first_and_ties_by_class_id(k: int) -> None:
    """The k most probable come sorted; equal ones in the order of their ids, for every k."""
    assert ids(top_k(ROW, LABELS, k, 0.0)) == [1, 3, 2, 5, 0, 4][:k]


def test_labels_belong_to_their_class() -> None:
    """Class k has line k of the labels."""
    assert top_k(ROW, LABELS, 1, 0.0) == [Prediction("class 1", 1, float(np.float32(0.4)))]


def test_threshold() -> None:
    """What is less probable than the threshold is left out, and that may be everything."""
    assert ids(top_k(ROW, LABELS, 6, 0.2)) == [1, 3]
    assert top_k(ROW, LABELS, 6, 0.9) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -0.01])
def test_values_that_are_no_probabilities_are_refused(bad: float) -> None:
    """A row with NaN in it is not usable, and the others are; of features, only numbers below zero are fine."""
    array = np.full((3, 3), 0.5, dtype=np.float32)
    array[1, 2] = bad
    assert usable_rows(CLASSIFICATION, array, 3, 3).tolist() == [True, False, True]
    assert usable_rows(EMBEDDING, array, 3, 3).tolist() == [True, bool(np.isfinite(bad)), True]


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (6,), (2, 3, 1)])
def test_an_unexpected_shape_is_refused(shape: tuple[int, ...]) -> None:
    """Rows and classes must be those that were asked for."""
    with pytest.raises(BadUpstreamResponse):
        usable_rows(CLASSIFICATION, np.zeros(shape, dtype=np.float32), 2, 3)


def test_unit_length() -> None:
    """Any row that has a direction gets the length 1, however large or small; one of zeros is refused."""
    for size in (1e-30, 1.0, 1e30):
        row = unit(np.array([3 * size, -4 * size], dtype=np.float32))
        assert not isinstance(row, ItemProblem)
        np.testing.assert_allclose(row, [0.6, -0.8], rtol=1e-6)
    assert isinstance(unit(np.zeros(2, dtype=np.float32)), ItemProblem)
