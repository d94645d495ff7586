"""A request's parameters, as text from a query, a form or JSON → values in range."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from gateway.access import Caller
from gateway.admission import Deadline
from gateway.cache import Row
from gateway.errors import InvalidParameter
from gateway.predictions import Prediction, top_k
from gateway.settings import Settings
from gateway.triton.model import Model, Task
from gateway.triton.tensors import CLASSIFICATION

if TYPE_CHECKING:
    from gateway.web.gate import Gate

_WHOLE = re.compile(r"\+?[0-9]{1,9}")
_DECIMAL = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def one_value_each(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One value for each name; the same one again is fine, another one is refused, for it would be lost."""
    values: dict[str, str] = {}
    for name, value in given:
        before = values.setdefault(name, value)
        if before != value and (name in ("model", "version") or not 0 <= _number(before) == _number(value)):
            raise InvalidParameter(f"{name} is given more than once, with different values.")
    return values


@dataclass(frozen=True)
class Ranking:
    """Which classes of an item a caller wants to see: how many, and how probable they must be at least."""

    top_k: int
    threshold: float

    def predictions(self, row: Row) -> list[Prediction]:
        """Largest probability first."""
        return top_k(row.values[CLASSIFICATION], row.model.labels, self.top_k, self.threshold)


async def model(
    parameters: Mapping[str, str],
    task: Task,
    default: str,
    gate: Gate,
    caller: Caller,
    outputs: Collection[str] = (),
) -> Model:
    """The model that is named, or the default one, in the version that is named, if any; it must be for this task.

    Where no version is named, only those that give all of `outputs` are asked.
    """
    name = caller.asked_model(parameters.get("model"), default)
    found = await gate.discovery.get(name, version(parameters), outputs)
    if found.task is not task:
        raise InvalidParameter(f"The model {found.name} is for another task: ask it at POST {found.task.route}.")
    return found


def version(parameters: Mapping[str, str]) -> str | None:
    """The version that is named, if any; a field that was left empty names none."""
    return parameters.get("version") or None


def ranking(parameters: Mapping[str, str], model: Model) -> Ranking:
    """`top_k` from 1 to the number of classes (5), `threshold` from 0 to 1 (0)."""
    wanted = _top_k(parameters.get("top_k"), len(model.labels))
    return Ranking(
        min(5, len(model.labels)) if wanted is None else wanted, _threshold(parameters.get("threshold", "0"))
    )


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """A yes or no; no if it is not there."""
    text = parameters.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidParameter(f"{name} must be true or false.")
    return text in ("true", "1")


def encoding(parameters: Mapping[str, str]) -> str:
    """How embeddings are written: "float" or "base64"."""
    text = parameters.get("encoding_format", "float")
    if text not in ("float", "base64"):
        raise InvalidParameter("encoding_format must be float or base64.")
    return text


def _top_k(text: str | None, classes: int) -> int | None:
    if text is None:
        return None
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= classes:
        raise InvalidParameter(f"top_k must be a whole number from 1 to {classes}.")
    return int(text)


def _threshold(text: str) -> float:
    if not 0 <= _number(text) <= 1:
        raise InvalidParameter("threshold must be a number from 0 to 1.")
    return _number(text)


def _number(text: str) -> float:
    """A decimal number as people and programs write it; -1 for anything else."""
    return float(text) if _DECIMAL.fullmatch(text) else -1.0


def deadline(request: Request, settings: Settings) -> Deadline:
    """From now: what X-Request-Timeout asks for, at most the operator's own limit."""
    name = "X-Request-Timeout"
    given = one_value_each((name, text.strip()) for text in request.headers.getlist(name))
    if not given:
        return Deadline.after(settings.request_timeout_s)
    seconds = _number(given[name])
    if not 0 < seconds < float("inf"):
        raise InvalidParameter("X-Request-Timeout must be a positive number of seconds.")
    return Deadline.after(min(seconds, settings.request_timeout_s))
