"""What is told of a run while it goes."""

from __future__ import annotations

import io

import pytest

from tidegate.progress import Lines, Tally, duration


def test_a_line_now_and_then() -> None:
    """Not more often than asked for; how many of how many, the rate since the line before, errors, the time left."""
    now, file, tally = 0.0, io.StringIO(), Tally()
    lines = Lines(10, file, lambda: now)
    tally.count(answered=500, failed=2)
    lines.show(tally, 4, 0)
    now = 9.9
    lines.show(tally, 4, 0)
    assert file.getvalue() == ""
    now = 10.0
    lines.show(tally, 4, 0)
    assert file.getvalue() == "502, 50.2 a second, 2 errors, 4 requests at once\n"
    tally.total = 2000
    tally.count(answered=398, known=100)
    now = 20.0
    lines.show(tally, 8, 0)
    now = 30.0
    lines.show(tally, 2, 7.2)
    lines.close()
    assert file.getvalue().splitlines()[1:] == [
        "1,000 of 2,000 (50%), 39.8 a second, 2 errors, 8 requests at once, 22 s left",
        "1,000 of 2,000 (50%), 0.0 a second, 2 errors, 2 requests at once, the gateway asked for a pause of 7 s more",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (48.4, "48 s"),
        (750, "12 min 30 s"),
        (12_000, "3 h 20 min"),
        (4e6, "1,111 h 6 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """As a person would say them."""
    assert duration(seconds) == words
