"""What a model is, by its configuration and by a real inference: it says what it does, and shows that it does it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BadUpstreamResponse
from gateway.predictions import usable_rows
from gateway.triton import ModelConfig, Tensor, Triton
from gateway.triton.certificates import not_ready, text_at
from gateway.triton.model import CATEGORIES, TASKS, Judgement, Model, Traffic
from gateway.triton.tensors import (
    CLASSIFICATION,
    EMBEDDING,
    IMAGE_STATUS,
    KNOWN_WORDS,
    PROBE_PICTURE,
    PROBE_TEXT,
    image_tensors,
    text_tensors,
)

TASK = "task"  # parameters of a model's configuration, told of in model_repository/README.md
NORMALISED, MODERATION = "normalised", "moderation"
VERSION_OF, WEIGHT, SHADOW = "version_of", "weight", "shadow"


async def describe(
    triton: Triton, config: ModelConfig, certificates: tuple[Mapping[str, Any], ...], timeout: float
) -> Model:
    """The model as it is served now; raises what speaks against using it."""
    task = TASKS.get(config.parameters[TASK])
    if task is None or task.output not in config.outputs:
        raise not_ready(f"task {config.parameters[TASK]!r} is not one that this version serves, or lacks its output")
    traffic = _traffic(config.parameters)
    model = Model(
        name=traffic.of if traffic else config.name,
        version="",
        task=task,
        max_batch=max(1, config.max_batch),
        outputs=frozenset(config.outputs),
        dim=config.outputs[EMBEDDING][-1] if EMBEDDING in config.outputs else 0,
        normalised=config.parameters.get(NORMALISED) == "l2",
        certificates=certificates,
        traffic=traffic,
        served_as=config.name,
    )
    version = None
    if CLASSIFICATION in config.outputs:
        classes = config.outputs[CLASSIFICATION][-1]
        answer = await triton.infer(
            config.name, probe_inputs(model), [CLASSIFICATION], timeout=timeout, top_classes=classes
        )
        lines, version = _labels(answer.outputs[CLASSIFICATION].ravel().tolist(), classes), answer.model_version
        _check_certified(lines, certificates)
        labels = tuple(line.strip() for line in lines)
        model = replace(model, labels=labels, moderation=_moderation(config.parameters, labels))
    answered = await probe(triton, model, timeout)
    if version not in (None, answered):
        raise not_ready("its version was exchanged while it was asked")
    return replace(model, version=answered)


async def probe(triton: Triton, model: Model, timeout: float) -> str:
    """A tiny inference for all outputs of the model's task; the version that answered, or raises what is wrong."""
    status = IMAGE_STATUS if model.task.of == "images" else KNOWN_WORDS
    wanted = [model.task.output, *({status} & model.outputs)]
    answer = await triton.infer(model.served_as, probe_inputs(model), wanted, timeout=timeout)
    try:
        usable = usable_values(model, model.task.output, answer.outputs[model.task.output], 1)
        if status == IMAGE_STATUS and answer.outputs[IMAGE_STATUS].ravel().tolist() != [0]:
            raise BadUpstreamResponse("The probe picture was not taken.", private="IMAGE_STATUS is not 0")
    except KeyError as missing:
        raise BadUpstreamResponse("The model's answer lacks an output.", private=str(missing)) from missing
    if not usable.all():
        raise BadUpstreamResponse("The model answered with unusable values.", private=f"{model.task.output} of a probe")
    return answer.model_version


def usable_values(model: Model, output: str, values: NDArray[np.float32], rows: int) -> NDArray[np.bool_]:
    """Which rows of an output FP32 `[rows, width]` may be used; another shape is `BadUpstreamResponse`."""
    return usable_rows(output, values, rows, len(model.labels) if output == CLASSIFICATION else model.dim)


def probe_inputs(model: Model) -> Sequence[Tensor]:
    """The smallest honest question."""
    if model.task.of == "texts":
        return text_tensors([PROBE_TEXT])
    size = len(PROBE_PICTURE)
    return image_tensors(1, size, PROBE_PICTURE, np.array([[size]]))


def _labels(strings: Sequence[bytes], classes: int) -> tuple[str, ...]:
    """`value:index:label` for every class, in any order → the lines of labels.txt, in the order of the classes."""
    labels: dict[int, str] = {}
    for text in strings:
        _, index, label = [*text.decode("utf-8", "replace").split(":", 2), "", ""][:3]
        if label.strip():
            labels[int(index)] = label
    if len(labels) != classes:
        raise BadUpstreamResponse(
            "The model has no complete list of labels.",
            private=f"labels for {len(labels)} of {classes} classes",
        )
    return tuple(labels[k] for k in range(classes))


def _check_certified(lines: Sequence[str], certificates: Sequence[Mapping[str, Any]]) -> None:
    """`ModelNotReady` where a certificate was given for other labels: a list that was edited names classes wrongly."""
    found = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    for certificate in certificates:
        certified = text_at(certificate, "labels", "sha256")
        if certified not in (None, found):
            raise not_ready(f"it was certified with the labels {certified}, and those that are served are {found}")


def _moderation(parameters: Mapping[str, str], labels: Sequence[str]) -> dict[str, Judgement]:
    if MODERATION not in parameters:
        return {}
    try:
        document = json.loads(parameters[MODERATION])
        judgements = {
            label: Judgement(str(entry["category"]), float(entry["threshold"])) for label, entry in document.items()
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise not_ready(f"its parameter {MODERATION} cannot be read: {error!r}") from error
    if not judgements or set(judgements) - set(labels):
        raise not_ready(f"its parameter {MODERATION} names labels that it does not have, or none")
    if unknown := {judgement.category for judgement in judgements.values()} - set(CATEGORIES):
        raise not_ready(f"its parameter {MODERATION} names categories that there are not: {', '.join(sorted(unknown))}")
    if not all(0 <= judgement.threshold <= 1 for judgement in judgements.values()):
        raise not_ready(f"its parameter {MODERATION} has a threshold that is not from 0 to 1")
    return judgements


def _traffic(parameters: Mapping[str, str]) -> Traffic | None:
    if VERSION_OF not in parameters:
        return None
    shares = []
    for name in (WEIGHT, SHADOW):
        try:
            share = float(parameters.get(name, "0"))
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise not_ready(f"its parameter {name} is {parameters[name]!r}, not a number from 0 to 1")
        shares.append(share)
    return Traffic(parameters[VERSION_OF], *shares)
