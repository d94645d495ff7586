"""Checkpoint → ONNX → engine → verified model repository entry. Never imports the gateway.

Importing this package is cheap: what a build needs is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from build_engines.errors import BuildError

__all__ = ["BuildError", "build_default"]


def build_default(repository: Path, *, force: bool = False, say: Callable[[str], object] = print) -> Path | None:
    """Builds the default models into `repository` where they are missing or out of date: `build_engines.defaults`.

    Returns the folder of the classifier's version, None where a person put another one in its place. `say` gets lines
    about what was done. Raises `BuildError`, whose message is for a person, when there is no classifier in the end.
    """
    from build_engines.defaults import build_defaults

    return build_defaults(repository, repository.parent / ".build_engines", force=force, say=say)
