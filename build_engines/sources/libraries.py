"""Libraries that only some sources need: the error when one is missing says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from build_engines.errors import SourceError


class MissingPackage(SourceError):
    """A library is not installed."""


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Imports inside need the project's extra `extra`; `MissingPackage` names it when a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(f"The package {error.name} is not installed: pip install 'tidegate[{extra}]'.") from error
