"""What the classes of a classifier mean for moderation: which of them are reported as which category, and from when on.

A JSON object, label → `{"category", "threshold"}`. The categories are those of OpenAI's moderation API, whose shape
`POST /v1/moderations` has; a class without an entry is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from build_engines.errors import SourceError

CATEGORIES = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
"""Of the model omni-moderation-latest, as the API's reference lists them."""

LARGEST = 1 << 20
"""Bytes."""


def read_moderation(content: bytes, labels: Sequence[str]) -> dict[str, Any]:
    """The content of such a file for a classifier with these labels.

    Raises `SourceError` that says what is wrong: a label that there is not, an unknown category, a threshold that is
    not from 0 to 1.
    """
    try:
        if len(content) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 10} KiB")
        found = json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"The moderation file cannot be read ({error}).") from error
    if not isinstance(found, dict) or not found:
        raise SourceError("The moderation file must hold an object: for each label a category and a threshold.")
    return {label: _entry(label, entry, labels) for label, entry in found.items()}


def _entry(label: str, entry: object, labels: Sequence[str]) -> Mapping[str, Any]:
    if label not in labels:
        some = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")
        raise SourceError(f"The moderation file names the label {label!r:.80}, and the model has {some}.")
    if not isinstance(entry, dict) or entry.keys() != {"category", "threshold"}:
        raise SourceError(f"The moderation file must give {label!r:.80} a category and a threshold, and nothing else.")
    category, threshold = entry["category"], entry["threshold"]
    if category not in CATEGORIES:
        raise SourceError(
            f"The moderation file gives {label!r:.80} the category {category!r:.80}: it is one of "
            f"{', '.join(CATEGORIES)}."
        )
    if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
        raise SourceError(f"The threshold of {label!r:.80} is {threshold!r:.80}: it must be a number from 0 to 1.")
    return {"category": category, "threshold": float(threshold)}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found
