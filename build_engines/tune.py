"""`python -m build_engines tune`: finds how a Triton serves a model's network best on the machine at hand.

Starts a real Triton (or uses a running one), tries instances, threads, delays and batch sizes one after the
other, and writes the setting of highest throughput within a latency budget into the model's entry.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from build_engines import publish
from build_engines.configs import DEFAULT_MODEL
from build_engines.errors import TuneError
from build_engines.images import SAMPLES

if TYPE_CHECKING:
    from build_engines.tuning.report import Report

CLIENTS = (1, 8, 32)
CLIENTS_OF_GPUS = (1, 8, 32, 128)
WARMUP_S = 2.0  # a server that loads a setting in place of another is busy unloading that for a second


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `run`."""
    parser.add_argument(
        "--repository", type=Path, default=Path("model_repository"), metavar="PATH", help="default: %(default)s"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="the ensemble (default: %(default)s)")
    parser.add_argument(
        "--triton",
        metavar="HOST:PORT",
        help="gRPC port of a running Triton with --model-control-mode=explicit that serves this repository; "
        "without it, one is started here, on the CPU",
    )
    parser.add_argument(
        "--budget-ms", type=_positive, metavar="N", help="95 of 100 answers must come within this many milliseconds"
    )
    parser.add_argument(
        "--images", type=Path, default=SAMPLES, metavar="PATH", help="photos to send (default: the examples)"
    )
    parser.add_argument(
        "--clients",
        type=_counts,
        metavar="N,N,…",
        help="requests in flight, one image in each (default: 1,8,32; for GPUs 1,8,32,128)",
    )
    parser.add_argument(
        "--seconds", type=_positive, default=4.0, metavar="N", help="of each measurement (default: %(default)g)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing in the repository; report files only where named"
    )
    parser.add_argument(
        "--work", type=Path, default=Path(".build_engines/tune"), metavar="PATH", help="default: %(default)s"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all figures (default: tune.json in --work)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="the plot (default: tune.png in --work)")


def run(options: argparse.Namespace) -> int:
    """Measures, reports, writes. 0 when a setting stays within the budget, 130 after an interruption.

    Raises `TuneError` when nothing can be measured or nothing stays within the budget; then nothing was written
    into the repository.
    """
    try:
        with _sigterm_is_ctrl_c():
            return _run(options)
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    # Late, because the other commands need no gRPC.
    from build_engines.tuning.entry import find_entry, own_setting
    from build_engines.tuning.load import Load, read_photos
    from build_engines.tuning.report import Report
    from build_engines.tuning.servers import Embedded, Remote, Server
    from build_engines.tuning.settings import axes
    from build_engines.tuning.trial import Trial

    entry = find_entry(options.repository, options.model)
    photos = read_photos(options.images, entry)
    with ExitStack() as stack:
        url = options.triton
        server: Server = stack.enter_context(Remote(entry, url)) if url else Embedded(entry)
        with tempfile.TemporaryDirectory(prefix="tidegate-tune-") as scratch:
            largest = own_setting(entry, server.variant, Path(scratch)).max_batch
        clients = options.clients or (CLIENTS if server.variant else CLIENTS_OF_GPUS)
        load = Load(clients, options.seconds, warmup_s=min(WARMUP_S, options.seconds))
        changes = axes(server.today(), largest_batch=largest, cores=server.cores, gpu=not server.variant)
        findings = Trial(server, photos, load, options.budget_ms).run(changes)
    report = Report(entry.network, _command(), url or "embedded", options.seconds, findings)
    _show(report, options)
    chosen = findings.chosen
    if chosen is None:
        raise TuneError(findings.outcome)
    print(findings.outcome)
    if chosen != findings.today and not options.dry_run:
        publish.retune(entry, server.variant, chosen.tuning)
        print(f"Written into {entry.folder}: a server that runs serves it when it loads the model again.")
    return 0


def _show(report: Report, options: argparse.Namespace) -> None:
    """The table on standard output, the files where they belong."""
    from build_engines.tuning.plot import write_plot
    from build_engines.tuning.report import table, write_document

    print(f"\n{table(report.findings)}\n")
    out = options.out or (None if options.dry_run else options.work / "tune.json")
    plot = options.plot or (None if options.dry_run else options.work / "tune.png")
    if out:
        write_document(report, out)
    if plot:
        try:
            write_plot(report.findings, report.network, plot)
        except ModuleNotFoundError:
            print("The plot is left out, because matplotlib is not installed: pip install 'tidegate[tune]'.")
            plot = None
    if out or plot:
        print(f"Written: {', '.join(str(path) for path in (out, plot) if path)}.")


def _command() -> str:
    return shlex.join(["python", "-m", "build_engines", *sys.argv[1:]])


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _counts(text: str) -> list[int]:
    counts = sorted({int(part) for part in text.split(",")})
    if counts[0] < 1:
        raise ValueError(text)
    return counts
