"""A request's parameters, as text from a query, a form or JSON → values in range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.requests import Request

from gateway.admission import Deadline
from gateway.errors import InvalidParameter
from gateway.inference import Question
from gateway.settings import Settings
from gateway.triton.discovery import Model

_WHOLE = re.compile(r"\+?[0-9]{1,9}")
_DECIMAL = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def one_value_each(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One value for each name; the same one again is fine, another one is refused, for it would be lost."""
    values: dict[str, str] = {}
    for name, value in given:
        before = values.setdefault(name, value)
        if before != value and (name == "model" or not 0 <= _number(before) == _number(value)):
            raise InvalidParameter(f"{name} is given more than once, with different values.")
    return values


def question(parameters: Mapping[str, str], model: Model) -> Question:
    """`top_k` from 1 to the number of classes (5), `threshold` from 0 to 1 (0)."""
    return Question(_top_k(parameters.get("top_k"), len(model.labels)), _threshold(parameters.get("threshold", "0")))


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
