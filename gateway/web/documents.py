"""JSON text → a document of a known shape, or an error that says what is wrong, where, and what would do."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gateway.errors import InvalidParameter, MalformedRequest

Document = TypeVar("Document", bound=BaseModel)

_WORDS = {
    "missing": "is missing",
    "model_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "literal_error": "must be {expected}",
    "int_type": "must be a whole number, without quotes or a decimal point",
    "int_from_float": "must be a whole number, without quotes or a decimal point",
    "float_type": "must be a number, without quotes",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "value_error": "{error}",
}
"""What a pydantic error says to a caller, by its type; a validator of ours has words of its own."""


def read_document(content: bytes, kind: type[Document]) -> Document:
    """The document; raises `MalformedRequest` when it is not JSON, `InvalidParameter` when it has another shape."""
    try:
        document = kind.model_validate_json(content)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise MalformedRequest(f"The body is not JSON: {_where(error, content)}.") from error
        raise InvalidParameter(_sentence(error, kind)) from error
    if not _has_no_other_strings(content, document):
        json.loads(content, object_pairs_hook=_object)
    return document


def stands_more_than(times: int, what: bytes, content: bytes) -> bool:
    """Whether one byte stands in `content` more than so many times; where it is rare, much faster than `count`."""
    at = -1
    for _ in range(times + 1):
        at = content.find(what, at + 1)
        if at < 0:
            return False
    return True


def _where(error: ValidationError, content: bytes) -> str:
    if not content:
        return "it is empty"
    if content.startswith(BOM_UTF8):
        return "it begins with a byte order mark, which is to be left out"
    return str(error.errors()[0]["ctx"]["error"])


def _has_no_other_strings(content: bytes, document: BaseModel) -> bool:
    """Whether all quotes of `content` are accounted for, so that no key stands twice, of which the last would win.

    Far cheaper than a parser that tells: a document is one long string, most of the time.
    """
    strings = list(_strings(document))
    quotes = 2 * len(strings) + sum(text.count('"') for text in strings if '"' in text)
    escapes = b"\\" in content and b"\\u" in content
    return not escapes and not stands_more_than(quotes, b'"', content)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield name
            yield from _strings(getattr(value, name))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if found[key] != value:
                raise InvalidParameter(f"The key {key[:64]!r} stands twice in one object, with different values.")
    return found


def _sentence(error: ValidationError, kind: type[BaseModel]) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = first["loc"]
    if first["type"] == "extra_forbidden":
        known = ", ".join(_model_at(kind, path[:-1]).model_fields)
        return f"{_place(path[:-1])} has an unknown key {str(path[-1])[:64]!r}; known are {known}."
    words = _WORDS.get(first["type"], "has no usable value")
    return f"{_place(path)} {words.format(**first.get('ctx', {}))}."


def _place(path: Sequence[int | str]) -> str:
    """`images[3].data`"""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps.removeprefix(".") or "The document"


def _model_at(kind: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    for step in path:
        if isinstance(step, str):
            (kind,) = get_args(kind.model_fields[step].annotation)  # a list of models is the only nesting
    return kind
