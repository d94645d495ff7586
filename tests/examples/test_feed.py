from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from gateway.triton.local import LocalTritonError, find_installation
from tests.servers import ROOT

EXAMPLES = ROOT / "examples"


def feed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the example to its end."""
    command = [sys.executable, str(EXAMPLES / "feed.py"), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def write_feed(path: Path) -> None:
    """The sample headlines as a feed whose entries have categories."""
    with (EXAMPLES / "texts" / "headlines.csv").open(newline="", encoding="utf-8") as file:
        items = [
            f"<item><title>{escape(row['title'])}</title><category>{row['label']}</category></item>"
            for row in csv.DictReader(file)
        ]
    path.write_text(f'<rss version="2.0"><channel><title>t</title>{"".join(items)}</channel></rss>')


def test_a_feed_is_sorted_by_a_model_of_another(tmp_path: Path) -> None:
    """From one feed to the labels of another, through a real Triton and a gateway: a line for each, most right."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    write_feed(tmp_path / "train.xml")
    done = feed("--train", str(tmp_path / "train.xml"), "--repository", str(tmp_path / "repository"))
    assert done.returncode == 0, done.stderr
    built, _, head, *lines = done.stdout.splitlines()
    assert "built version 1 from 192 texts" in built
    assert head.split() == ["category", "probability", "ms", "title,", "link"]
    titles = re.findall("<title>(.*)</title>", (EXAMPLES / "feeds" / "news.xml").read_text())[1:]
    assert len(lines) == len(titles)
    found = []
    for number, (line, title) in enumerate(zip(lines, titles, strict=True), 1):
        label, probability, milliseconds = line.split()[:3]
        assert line.endswith(f"  {title}  https://example.org/news/{number}")
        assert 0.25 <= float(probability) <= 1
        assert float(milliseconds) > 0
        found.append(label)
    expected = [label for label in ("Business", "Sci/Tech", "Sports", "World") for _ in range(3)]
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 8
    assert (tmp_path / "repository" / "text_classifier" / "1" / "certificate.json").is_file()


def test_what_is_no_feed_ends_with_a_sentence() -> None:
    """A file that is none is named, before anything is trained or started."""
    done = feed("--new", str(ROOT / "LICENSE"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "LICENSE is no RSS or Atom feed, or one without entries.\n"
