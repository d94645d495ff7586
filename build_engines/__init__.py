"""Checkpoint → ONNX → engine → verified model repository entry. Never imports the gateway.

Importing this package is cheap: what a build needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from build_engines.errors import BuildError

__all__ = ["BuildError", "build_default"]


def build_default(repository: Path, *, force: bool = False, say: Callable[[str], object] = print) -> Path:
    """Builds the default classifier into `repository` unless it is up to date; returns the version's folder.

    `say` gets lines about what was done. Raises `BuildError`, whose message is for a person.
    """
    from build_engines.build import Order, build

    return build(Order(repository=repository, force=force, work=repository.parent / ".build_engines"), say)
