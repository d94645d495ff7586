"""Runs source, graph and engine on the same pictures, lets the gate decide, and writes the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import BuildError, GateError
from build_engines.preprocessing import Preprocessing

if TYPE_CHECKING:
    from build_engines.build import Order
    from build_engines.gate import Agreement
    from build_engines.images import ImageSet
    from build_engines.sources import Network, Source
    from build_engines.targets import Answers, Engine

_GRAPH_PICTURES = 100
_CHUNK = 32  # pictures in memory at once


def judge(
    order: Order,
    source: Source,
    network: Network,
    engine: Engine,
    precision: str,
    preprocessing: Preprocessing,
    labels: bytes | None,
    path: Path,
    say: Callable[[str], object],
) -> Agreement:
    """Compares the engine with its source; raises `GateError`, and shows both in a report, when they differ."""
    import numpy as np

    from build_engines import gate, report
    from build_engines.images import built_in, read_images

    limits = gate.LIMITS[precision]
    if order.min_agreement is not None:
        limits = replace(limits, top1=order.min_agreement)
    if order.max_accuracy_loss is not None:
        limits = replace(limits, accuracy_loss=order.max_accuracy_loss)
    if order.images is None:
        pictures = built_in()
        say(f"judging on {len(pictures)} built-in pictures, which are few: name a folder of your own with --images")
    else:
        pictures = read_images(order.images).part(order.part)
        say(f"judging on {len(pictures)} pictures")
    names = gate.read_labels(labels, network.width) if labels is not None else ()
    truth = pictures.truth(names) if names else np.full(len(pictures), -1)
    own = source.preprocess()
    theirs = preprocessing if own is None else Preprocessing.of(own)
    expected = _answers(network.reference, pictures, theirs)
    faults = _faults_of_graph(network, pictures, expected, preprocessing)
    if source.identity()["weights"] != "random":
        faults += gate.faults_of_source(expected, task=network.task)
    answers = _answers(engine.run, pictures, preprocessing)
    first = [preprocessing.pixels(picture.read()) for picture in pictures.pictures[:4]]
    alone = np.concatenate([engine.run(np.stack([pixels])) for pixels in first])
    faults += gate.faults_of_answers(
        answers,
        alone,
        task=network.task,
        images=len(pictures),
        width=network.width,
        normalised=network.shown.get("normalised") == "l2",
    )
    faults += gate.faults_of_layers(engine.layers, precision, limits)
    if expected.shape != answers.shape:
        raise GateError(f"{order.model}: the engine was refused, nothing was published: {'; '.join(faults)}.")
    agreement = gate.compare(expected, answers, task=network.task, truth=truth, kind=pictures.kind)
    faults = faults or gate.faults_of_agreement(agreement, limits)
    faults += gate.faults_of_labels(expected, truth)
    shown = [
        report.Shown(
            pictures.pictures[index].path.name,
            theirs.pixels(pictures.pictures[index].read()),
            preprocessing.pixels(pictures.pictures[index].read()),
            expected[index],
            answers[index],
        )
        for index in gate.worst(expected, answers, report.SHOWN)
    ]
    report.write(
        path,
        title=f"{order.model}: {source.name}, {order.target}, {precision}",
        agreement=agreement,
        limits=limits,
        layers=engine.layers,
        faults=faults,
        labels=names,
        shown=shown,
    )
    if faults:
        raise GateError(
            f"{order.model}: the engine was refused, nothing was published: {'; '.join(faults)}. "
            f"{path} shows the pictures that differ most."
        )
    return agreement


def _faults_of_graph(
    network: Network, pictures: ImageSet, expected: Answers, preprocessing: Preprocessing
) -> list[str]:
    """Where the FP32 graph, before any precision is taken from it, is not the source."""
    import numpy as np
    import onnxruntime

    from build_engines import gate
    from build_engines.sources import INPUT

    try:
        session = onnxruntime.InferenceSession(network.graph, providers=["CPUExecutionProvider"])
        first = replace(pictures, pictures=pictures.pictures[:_GRAPH_PICTURES])
        answers = _answers(lambda pixels: session.run(None, {INPUT: pixels})[0], first, preprocessing)
    except BuildError:
        raise
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise GateError(f"The graph does not run ({error}); nothing was published.") from error
    if answers.shape != (len(first), network.width) or not np.isfinite(answers).all():
        return [f"the graph answers with the shape {answers.shape}, or with values that are not finite"]
    unknown = np.full(len(first), -1)
    agreement = gate.compare(expected[: len(first)], answers, task=network.task, truth=unknown)
    return [f"already in FP32, {fault}" for fault in gate.faults_of_agreement(agreement, gate.LIMITS["fp32"])]


def _answers(run: Callable[[Any], Answers], pictures: ImageSet, preprocessing: Preprocessing) -> Answers:
    """The outputs for every picture, FP32 [n, width]; not all pictures are in memory at once."""
    import numpy as np

    from build_engines.errors import ImageSetError

    rows = []
    for start in range(0, len(pictures), _CHUNK):
        pixels = []
        for picture in pictures.pictures[start : start + _CHUNK]:
            try:
                pixels.append(preprocessing.pixels(picture.read()))
            except ImageSetError as error:
                raise ImageSetError(f"{picture.path}: {error}. Take it out of the set.") from error
        rows.append(run(np.stack(pixels)))
    return np.concatenate(rows)
