"""The gate's report: one HTML file, pictures inside, that shows where an engine and its source differ."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from build_engines.errors import PublishError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.gate import Agreement, Limits

SHOWN = 12
"""Pictures in a report: those that differ most."""

_TOP = 5

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3b82f6; --bad: #dc2626; --good: #16a34a; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem .8rem .25rem 0; vertical-align: top; }
.verdict { padding: .6rem 1rem; border-left: .3rem solid var(--good); background: #16a34a18; }
.verdict.refused { border-color: var(--bad); background: #dc262618; }
.picture { display: grid; grid-template-columns: 12rem 12rem 1fr 1fr; gap: 1rem; padding: 1rem 0;
  border-top: 1px solid var(--line); }
.picture img { width: 100%; image-rendering: pixelated; } .picture h3 { margin: 0 0 .4rem; font-size: .85rem; }
.name { grid-column: 1 / -1; font-weight: 600; }
.row { display: grid; grid-template-columns: 1fr 3.5rem; font-size: .85rem; margin-bottom: .3rem; }
.row .bar { grid-column: 1 / -1; height: .3rem; background: var(--line); }
.row .bar i { display: block; height: 100%; background: var(--bar); } .number { text-align: right; }
@media (max-width: 50rem) { .picture { grid-template-columns: 1fr 1fr; } }
"""


@dataclass(frozen=True)
class Shown:
    """One picture: as the source and as the engine got it, UINT8 [size, size, 3], and their answers, FP32 [width]."""

    name: str
    source_pixels: npt.NDArray[np.uint8]
    engine_pixels: npt.NDArray[np.uint8]
    source: npt.NDArray[np.float32]
    engine: npt.NDArray[np.float32]


def write(
    path: Path,
    *,
    title: str,
    agreement: Agreement,
    limits: Limits,
    layers: Mapping[str, int],
    faults: Sequence[str],
    labels: Sequence[str],
    shown: Sequence[Shown],
) -> None:
    """Writes the report. `faults` are empty for an engine that passed. Raises `PublishError` when it cannot."""
    if faults:
        items = "".join(f"<li>{html.escape(fault)}</li>" for fault in faults)
        verdict = f'<div class="verdict refused"><b>Refused.</b> Nothing was published.<ul>{items}</ul></div>'
    else:
        verdict = '<div class="verdict"><b>Passed.</b></div>'
    rows = "".join(
        f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in _facts(agreement, limits, layers)
    )
    pictures = "".join(_picture(one, labels) for one in shown)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
{verdict}
<h2>Engine against source</h2>
<table>{rows}</table>
<h2>The {len(shown)} pictures that differ most</h2>
{pictures}
</body></html>
"""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise PublishError(f"{path} cannot be written ({error.strerror}): name another folder with --work.") from error


def _facts(agreement: Agreement, limits: Limits, layers: Mapping[str, int]) -> list[tuple[str, str]]:
    facts = [
        ("pictures", f"{agreement.images} {agreement.kind}, {agreement.labelled} of them labelled"),
        ("deviation", f"{agreement.deviation:.4f} (at most {limits.deviation})"),
        ("largest difference", f"{agreement.largest:.4f}"),
        ("mean difference", f"{agreement.mean:.6f}"),
        ("smallest cosine", f"{agreement.cosine:.4f}{'' if agreement.top1 else f' (at least {limits.cosine})'}"),
        ("layers", ", ".join(f"{count} in {name}" for name, count in sorted(layers.items()))),
    ]
    if agreement.top1 is not None:
        facts.insert(1, ("same best class", f"{agreement.top1:.1%} (at least {limits.top1:.0%})"))
    if agreement.accuracy is not None:
        facts.insert(2, ("top-1", f"{agreement.accuracy:.1%} (source {agreement.source_accuracy:.1%})"))
    return facts


def _picture(one: Shown, labels: Sequence[str]) -> str:
    return (
        f'<div class="picture"><div class="name">{html.escape(one.name)}</div>'
        f"<div><h3>as the source sees it</h3>{_image(one.source_pixels)}</div>"
        f"<div><h3>as the engine sees it</h3>{_image(one.engine_pixels)}</div>"
        f"<div><h3>source</h3>{_answer(one.source, labels)}</div>"
        f"<div><h3>engine</h3>{_answer(one.engine, labels)}</div></div>"
    )


def _image(pixels: npt.NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _answer(values: npt.NDArray[np.float32], labels: Sequence[str]) -> str:
    if not labels:
        return f"<div>[{', '.join(f'{value:.3f}' for value in values[:8])}, …]</div>"
    rows = []
    for index in values.argsort()[::-1][:_TOP]:
        share = float(values[index])
        rows.append(
            f'<div class="row"><span>{html.escape(labels[index])}</span><span class="number">{share:.3f}</span>'
            f'<span class="bar"><i style="width:{100 * share:.1f}%"></i></span></div>'
        )
    return "".join(rows)
