"""The plot of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import TuneError
from build_engines.tuning.choice import Findings, Measured, best_point
from build_engines.tuning.report import setting_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_plot(findings: Findings, network: str, path: Path) -> None:
    """Writes the plot as a PNG file.

    Raises ModuleNotFoundError without matplotlib, `TuneError` when the file cannot be written.
    """
    figure = draw(findings, network)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise TuneError(f"{path} cannot be written ({error.strerror}): name another file with --plot.") from error


def draw(findings: Findings, network: str) -> Figure:
    """Throughput against p95 latency, a line for each setting and a mark for each load."""
    from matplotlib.figure import Figure

    valid = [each for each in findings.measured if not each.invalid]
    figure = Figure(figsize=(9, 5.5 + 0.22 * len(valid)), layout="constrained")
    axes = figure.add_subplot()
    for index, each in enumerate(valid):
        _draw_line(axes, findings, each, index)
    if findings.budget_ms is not None:
        axes.axvline(findings.budget_ms, color="tab:red", linestyle=":", label=f"budget: {findings.budget_ms:g} ms")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(_ticks())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.08, y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("95 of 100 answers came within … ms (p95, logarithmic); left is better")
    axes.set_ylabel("images a second; up is better")
    clients = ", ".join(str(point.clients) for point in valid[0].points)
    axes.set_title(f"{network}: a line for each setting, a mark for each load ({clients} clients)", fontsize="medium")
    axes.grid(visible=True, which="major", alpha=0.3)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return figure


def _ticks() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1, 2, 5))


def _draw_line(axes: Axes, findings: Findings, measured: Measured, index: int) -> None:
    """One setting's line: today's black and dashed, the chosen one thick with a star at its best load."""
    points = sorted(measured.points, key=lambda point: point.clients)
    today, chosen = measured.setting == findings.today, measured.setting == findings.chosen
    axes.plot(
        [point.p95_ms for point in points],
        [point.rate for point in points],
        label=setting_name(findings, measured.setting),
        color="black" if today else f"C{index % 10}",
        linestyle="--" if today else "-",
        linewidth=2.5 if chosen else 1.2,
        marker="s" if today else "o",
        markersize=6 if today or chosen else 4,
        alpha=1 if today or chosen else 0.75,
        zorder=3 if today or chosen else 2,
    )
    for point in points if today else ():
        words = f"{point.clients} client{'s' * (point.clients > 1)}"
        axes.annotate(
            words,
            (point.p95_ms, point.rate),
            (7, -12),
            textcoords="offset points",
            fontsize="small",
            bbox={"boxstyle": "square,pad=0.1", "color": "white", "alpha": 0.8},
            zorder=3,
        )
    found = best_point(measured, findings.budget_ms) if chosen else None
    if found is not None:
        axes.plot(
            found.p95_ms, found.rate, "*", markersize=17, color="gold", markeredgecolor="black", zorder=4,
            label=f"chosen: {found.rate:.0f} images/s, p95 {found.p95_ms:.0f} ms, {found.clients} clients",
        )  # fmt: skip
