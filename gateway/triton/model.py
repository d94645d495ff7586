"""A model behind the gate, as discovery knows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gateway.triton.certificates import text_at, weights_of
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING


@dataclass(frozen=True)
class Task:
    """What a model is for: what it is asked about, and the output that answers."""

    name: str
    of: str
    """"images" or "texts"."""
    output: str
    route: str
    """Where a caller asks it."""

    def is_output(self, name: str) -> bool:
        """Whether an engine's own output of this name is the task's: some runtimes want a suffix, as in `…__0`."""
        return name == self.output or name.startswith(f"{self.output}__")


CLASSIFY = Task("classify", "images", CLASSIFICATION, "/v1/classify")
EMBED = Task("embed", "images", EMBEDDING, "/v1/embed")
TEXT_CLASSIFY = Task("text_classify", "texts", CLASSIFICATION, "/v1/text/classify")
TEXT_EMBED = Task("text_embed", "texts", EMBEDDING, "/v1/embeddings")
TASKS = {task.name: task for task in (CLASSIFY, EMBED, TEXT_CLASSIFY, TEXT_EMBED)}


CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""Of the OpenAI API's moderations, all of which its clients look for in an answer."""


@dataclass(frozen=True)
class Judgement:
    """What a moderator's label means: a category of the OpenAI API, flagged from this probability on."""

    category: str
    threshold: float


@dataclass(frozen=True)
class Traffic:
    """What a candidate, a version that is served beside the main one, takes of the main one's traffic.

    `weight` is the share of requests that it answers, unless the caller names a version; `shadow` is the share of the
    main one's that are repeated on it, for comparison. Both from 0 to 1.
    """

    of: str
    weight: float
    shadow: float


@dataclass(frozen=True)
class Model:
    """A model behind the gate. `labels[k]` names class k; `max_batch` is Triton's own limit.

    `outputs` are all that it gives: a model that embeds may classify as well. `certificates` are the builder's
    documents of its engines, values of JSON, that of the task's own output first; none for a model made by hand.
    `served_as` is Triton's name for it, which a candidate does not share with the main version.
    """

    name: str
    version: str
    task: Task
    max_batch: int
    outputs: frozenset[str]
    labels: tuple[str, ...] = ()
    dim: int = 0
    """Of an embedding."""
    normalised: bool = False
    """Whether embeddings have unit length, by the model's own promise."""
    moderation: Mapping[str, Judgement] = field(default_factory=dict)
    """By label, for a classifier that moderates."""
    certificates: tuple[Mapping[str, Any], ...] = ()
    traffic: Traffic | None = None
    served_as: str = ""

    def may_stand_in_for(self, main: Model) -> bool:
        """Whether who asked `main` can use this one's answers: as many numbers, the same categories judged."""
        categories = [{judgement.category for judgement in each.moderation.values()} for each in (self, main)]
        classes = not self.labels or len(self.labels) >= len(main.labels)
        return self.task is main.task and self.dim == main.dim and classes and categories[0] == categories[1]

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Of the engine that gives the task's output."""
        return self.certificates[0] if self.certificates else None

    @cached_property
    def identity(self) -> str | None:
        """What no other engine has: name, version, and the hash of its certificates; None without any."""
        if not self.certificates:
            return None
        text = json.dumps(self.certificates, default=dict, sort_keys=True)
        return f"{self.name}/{self.version}/{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def precision(self) -> str | None:
        """What the engine computes in, such as "fp16", if its certificate says so."""
        return text_at(self.certificate, "precision")

    @property
    def weights(self) -> str | None:
        """Where the weights come from: "pretrained", "file" or "random", if the certificate says so."""
        return weights_of(self.certificate)
