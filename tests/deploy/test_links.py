"""Links between the pages of the project. Links to other sites are checked weekly by a workflow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/*/README.md"), *ROOT.glob("*/README.md")]
)


def text_of(page: Path) -> str:
    """The page without code, which may hold what looks like a link."""
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    found = set()
    for heading in re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE
    ):
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every file and every heading that a page links to is there."""
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """The check itself: a missing file and a missing heading are found, code and other sites are left alone."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A *title*, once\n[a](page.md#a-title-once) [b](#none) [c](no.md) `[d](e)` [f](https://g.example)\n"
    )
    assert broken(page) == ["#none", "no.md"]
