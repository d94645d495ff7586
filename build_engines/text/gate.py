"""The gate for texts: what a model must show before it is published, and how well it does on texts it never saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from build_engines.errors import GateError
from build_engines.text.serving.engine import TOLERANCE, Engine
from build_engines.text.texts import TextSet
from build_engines.text.train import Trained

Rows = npt.NDArray[np.float32]

BATCHES = (1, 8, 32)
SECONDS = 0.1  # for each size of a batch
_SAME = 0.9999  # cosine of two features of one text


@dataclass(frozen=True)
class Agreement:
    """How the exported model compares with scikit-learn's, and with the truth, on texts that neither learnt from."""

    kind: str
    """`given`, or `held out`: every fifth text of each label."""
    texts: int
    """Each is shown as a whole; and its first column alone where it has several."""
    top1: float | None
    """Share with the same best class; None for features."""
    largest: float
    mean: float
    """Absolute difference of one output."""
    cosine: float
    """The smallest between the two answers to one text."""
    labelled: int
    accuracy: float | None
    """Top-1 of whole texts; for features, the share whose nearest text among those learnt from has the same label."""
    source_accuracy: float | None
    accuracy_of: Mapping[str, float]
    """The same of the first column alone, and of all columns, by their names."""


def judge(
    trained: Trained, engine: Engine, learnt: TextSet, held_out: TextSet, kind: str, min_accuracy: float | None
) -> Agreement:
    """Compares the two; raises `GateError` when they differ, or when the model is no better than a constant answer."""
    forms = _forms(held_out)
    whole, several = "+".join(held_out.columns), [text for texts in forms.values() for text in texts]
    expected, expected_shares = trained.answers(several)
    rows, shares = engine(several)
    if not np.isfinite(rows).all():
        raise GateError("The exported model gives numbers that are none; nothing was published.")
    differences = np.abs(rows - expected)
    largest = max(float(differences.max()), float(np.abs(shares - expected_shares).max()))
    cosine = _smallest_cosine(rows, expected)
    same = float(np.mean(rows.argmax(1) == expected.argmax(1))) if trained.labels else None
    if not largest <= TOLERANCE or same not in (None, 1.0) or cosine < _SAME:
        raise GateError(
            f"The exported model differs from scikit-learn's by up to {largest:.2g} on {len(several)} texts, and "
            f"{TOLERANCE:g} is the most that is allowed; nothing was published."
        )
    _check_alone(engine, several, rows)
    truth = [text.label for text in held_out.texts]
    labelled = held_out.labelled
    ask = _best_of(trained) if trained.labels else _nearest(engine, learnt)
    each = {name: _accuracy(ask(engine(texts)[0]), truth) for name, texts in forms.items()} if labelled else {}
    source = _accuracy(ask(trained.answers(forms[whole])[0].astype(np.float32)), truth) if labelled else None
    if labelled:
        _check_accuracy(each[whole], truth, min_accuracy)
    return Agreement(
        kind=kind,
        texts=len(held_out),
        top1=same,
        largest=largest,
        mean=float(differences.mean()),
        cosine=cosine,
        labelled=sum(map(bool, truth)),
        accuracy=each.get(whole),
        source_accuracy=source,
        accuracy_of=each,
    )


def performance(engine: Engine, texts: Sequence[str]) -> Mapping[str, Any]:
    """`{"speed": [{"batch", "texts_per_s", "ms"}, …]}`: `ms` is the median time of one batch, `engine.py` alone."""
    speeds = []
    for batch in BATCHES:
        chosen = [texts[index % len(texts)].encode() for index in range(batch)]
        engine(chosen)
        times: list[float] = []
        while sum(times) < SECONDS:
            start = time.perf_counter()
            engine(chosen)
            times.append(time.perf_counter() - start)
        median = float(np.median(times))
        speeds.append({"batch": batch, "texts_per_s": round(batch / median, 1), "ms": round(1000 * median, 4)})
    return {"speed": speeds}


def _forms(texts: TextSet) -> dict[str, list[str]]:
    """What a caller may send: the first column, and all columns."""
    return {
        **({texts.columns[0]: [text.columns[0] for text in texts.texts]} if len(texts.columns) > 1 else {}),
        "+".join(texts.columns): [text.joined for text in texts.texts],
    }


def _smallest_cosine(rows: Rows, expected: npt.NDArray[np.float64]) -> float:
    """1 for two rows of zeros."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    return float(np.where(lengths > 0, (rows * expected).sum(1) / np.maximum(lengths, 1e-30), 1).min())


def _check_alone(engine: Engine, texts: Sequence[str], rows: Rows) -> None:
    """`GateError` when a text's answer depends on its neighbours."""
    for index in range(0, len(texts), max(1, len(texts) // 20)):
        if np.abs(engine(texts[index : index + 1])[0] - rows[index]).max() > TOLERANCE:
            raise GateError("The exported model answers a text in a batch unlike alone; nothing was published.")


def _best_of(trained: Trained) -> Callable[[Rows], list[str]]:
    return lambda rows: [trained.labels[best] for best in rows.argmax(1)]


def _nearest(engine: Engine, learnt: TextSet) -> Callable[[Rows], list[str]]:
    known = engine([text.joined for text in learnt.texts])[0]
    return lambda rows: [learnt.texts[best].label for best in (rows @ known.T).argmax(1)]


def _accuracy(found: Sequence[str], truth: Sequence[str]) -> float:
    right = [one == label for one, label in zip(found, truth, strict=True) if label]
    return float(np.mean(right))


def _check_accuracy(accuracy: float, truth: Sequence[str], least: float | None) -> None:
    labels = [label for label in truth if label]
    common = max(labels.count(label) for label in set(labels)) / len(labels)
    if least is None and accuracy <= common:
        raise GateError(
            f"The model is right on {accuracy:.1%} of {len(labels)} texts that it did not learn from, and always the "
            f"same answer would be on {common:.1%}: are these the texts' labels? --min-accuracy 0 takes it anyway."
        )
    if least is not None and accuracy < least:
        raise GateError(
            f"The model is right on {accuracy:.1%} of {len(labels)} texts that it did not learn from, and "
            f"--min-accuracy asks for {least:.1%}; nothing was published."
        )
