"""What was measured: as a table for a terminal, and as JSON to do it again."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_engines.errors import TuneError
from build_engines.tuning.choice import Findings, Point, fits
from build_engines.tuning.settings import Setting

SCHEMA = 1

_HEADINGS = ("clients", "images/s", "p50 ms", "p95 ms")


@dataclass(frozen=True)
class Report:
    """A whole run."""

    network: str
    command: str
    """That started it."""
    server: str
    """"embedded", or the address of the one that was measured."""
    seconds: float
    """Of each measurement."""
    findings: Findings


def table(findings: Findings) -> str:
    """A row for each load of each setting; ! marks what misses the budget."""
    names = {each.setting: setting_name(findings, each.setting) for each in findings.measured}
    width = max(len("setting"), *map(len, names.values()))
    lines = [f"{'setting':<{width}}" + "".join(f" {heading:>9}" for heading in _HEADINGS)]
    lines.append("-" * len(lines[0]))
    for each in findings.measured:
        name = names[each.setting]
        if each.invalid:
            lines.append(f"{name:<{width}} {each.invalid}")
        for point in () if each.invalid else each.points:
            lines.append(f"{name:<{width}}{_row(point, findings.budget_ms)}")
            name = ""
    if findings.again and not findings.rounds:
        lines.append(f"{'today, once more':<{width}}{_row(findings.again, findings.budget_ms)}")
    for number, each_round in enumerate(findings.rounds, 1):
        for what, point in (("today", each_round.today), ("winner", each_round.winner)):
            lines.append(f"{f'round {number}, {what}':<{width}}{_row(point, findings.budget_ms)}")
    return "\n".join(lines)


def _row(point: Point, budget_ms: float | None) -> str:
    mark = "" if fits(point, budget_ms) else " !"
    return f" {point.clients:>9} {point.rate:>9.1f} {point.p50_ms:>9.1f} {point.p95_ms:>9.1f}{mark}"


def setting_name(findings: Findings, setting: Setting) -> str:
    """With the words "today" and "chosen" where they belong."""
    marked = (("today", findings.today), ("chosen", findings.chosen))
    marks = [word for word, which in marked if which == setting]
    return f"{setting}{' (' + ', '.join(marks) + ')' if marks else ''}"


def document(report: Report) -> dict[str, Any]:
    """All of it as JSON values; rates are images a second, times milliseconds."""
    return {
        "schema": SCHEMA,
        **asdict(report),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
        },
    }


def write_document(report: Report, path: Path) -> None:
    """Writes the JSON file; `TuneError` when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document(report), indent=2) + "\n")
    except OSError as error:
        raise TuneError(f"{path} cannot be written ({error.strerror}): name another file with --out.") from error


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
