from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from build_engines import gate, report
from build_engines.errors import PublishError

SOURCE = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], np.float32)
ENGINE = SOURCE[:, ::-1].copy()
PIXELS = np.zeros((8, 8, 3), np.uint8)


class Text(HTMLParser):
    """The words of a page and the tags that it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def write(path: Path, faults: list[str], labels: tuple[str, ...] = ("cat", "<b>dog</b>", "fish")) -> Text:
    """A report on two pictures, read back."""
    agreement = gate.compare(SOURCE, ENGINE, task="classify", truth=np.array([0, -1]))
    shown = [report.Shown(f"{k}.jpg", PIXELS, PIXELS, SOURCE[k], ENGINE[k]) for k in range(2)]
    report.write(
        path,
        title="tiny: openvino",
        agreement=agreement,
        limits=gate.LIMITS["int8"],
        layers={"int8": 3},
        faults=faults,
        labels=labels,
        shown=shown,
    )
    text = Text()
    text.feed(path.read_text())
    return text


def test_a_refusal_says_why(tmp_path: Path) -> None:
    """Faults, figures and both answers to each picture stand in one file that loads nothing from elsewhere."""
    path = tmp_path / "work" / "report.html"
    text = write(path, ["its probabilities do not sum to 1"])
    words = " ".join(text.words)
    for expected in ("Refused.", "do not sum to 1", "0.jpg", "0.700", "3 in int8", "1 of them labelled"):
        assert expected in words
    assert text.tags.count("img") == 4
    assert "http" not in path.read_text()


def test_labels_are_text(tmp_path: Path) -> None:
    """A label with angle brackets is shown as it is, and is no markup."""
    text = write(tmp_path / "report.html", [])
    assert "<b>dog</b>" in text.words
    assert "Passed." in text.words


def test_features_are_numbers(tmp_path: Path) -> None:
    """Without labels, the first values are shown."""
    assert any("0.700, 0.200" in words for words in write(tmp_path / "report.html", [], ()).words)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The error names the option that puts it elsewhere."""
    (tmp_path / "file").touch()
    with pytest.raises(PublishError, match="--work"):
        write(tmp_path / "file" / "report.html", [])
