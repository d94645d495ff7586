"""A small model of each kind, built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.text import TextOrder, build_samples
from tests.servers import ROOT

TEXTS = ROOT / "examples" / "texts"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the sample's `text_classifier` and `text_embedder`, each in version 1. Not to be changed."""
    repository = tmp_path_factory.mktemp("texts")
    build_samples(repository, lambda line: None)
    return repository


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Writes a table and returns its name: by default 5 texts of each of the labels `fruit` and `tool`."""

    def write(*rows: str, header: str = "label,title", name: str = "table.csv") -> str:
        path = tmp_path / name
        path.write_text("\n".join([header, *(rows or SMALL)]) + "\n")
        return str(path)

    return write


SMALL = (
    *(f"fruit,{text}" for text in ("ripe apples", "sweet pears", "a ripe plum", "sweet ripe cherries", "apples")),
    *(f"tool,{text}" for text in ("a steel hammer", "sharp saw", "steel nails", "a sharp chisel", "a saw of steel")),
)


def small_order(train: str, repository: Path, **changes: object) -> TextOrder:
    """An order of a classifier from such a table, which is judged on the table itself."""
    return TextOrder(**{"train": train, "valid": train, "repository": repository, **changes})  # type: ignore[arg-type]
