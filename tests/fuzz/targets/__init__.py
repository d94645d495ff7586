"""What is fuzzed. A target is a module with three functions:

- `seeds()`: small valid inputs to start from
- `mutate(data, rng)`: a variant of an input that keeps enough of its structure to get past the first check
- `check(data)`: the promises, as asserts, for any bytes whatever
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Protocol, cast

NAMES = ("headers", "imaging", "form", "json_body")
REGRESSIONS = Path(__file__).parents[1] / "regressions"


class Target(Protocol):
    def seeds(self) -> list[bytes]: ...
    def mutate(self, data: bytes, rng: random.Random) -> bytes: ...
    def check(self, data: bytes) -> None: ...


def load(name: str) -> Target:
    return cast(Target, importlib.import_module(f"{__name__}.{name}"))


def regressions(name: str) -> dict[str, bytes]:
    """Inputs that once broke a promise, by file name."""
    return {file.name: file.read_bytes() for file in sorted((REGRESSIONS / name).glob("*"))}
