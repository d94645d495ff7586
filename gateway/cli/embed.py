"""`tidegate embed`: features of many images, through a gateway, into one file."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegate.address import check_key, check_url
from tidegate.errors import BulkError, DifferentModel, Interrupted, NoRoom, SpoolError

if TYPE_CHECKING:
    from tidegate.extraction import Job, Summary
    from tidegate.progress import Display

KEY_VARIABLE, PORT_VARIABLE = "TIDEGATE_API_KEY", "TIDEGATE_PORT"
SUFFIXES = (".npz", ".parquet")
_UNITS = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
T = TypeVar("T")

_DESCRIPTION = """\
Sends images to a gateway and writes one row for each: its path, and its features or why there are none.
PATH is a file, a folder (with all that is below it, hidden files left out), a pattern such as 'photos/**/*.jpg', or -
for a list of paths on standard input. Whether a file is an image its bytes decide, never its name."""
_EPILOG = f"""\
examples:
  tidegate embed photos --out features.parquet
  tidegate embed photos more/cat.jpg 'archive/202?/**/*.JPG' --out features.npz --url https://gateway.example
  find /data -newer yesterday -type f | tidegate embed - --out new.npz
  tidegate embed photos --out features.parquet --resume     # after a crash, Ctrl-C, or to try errors again

The API key is read from --api-key-file, or else from the variable {KEY_VARIABLE}.
Exit code: 0 when every input has features, 1 when not, 2 for a wrong usage, 130 after Ctrl-C.
docs/bulk.md has more, and how to read the files."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the subcommand."""
    parser = commands.add_parser(
        "embed",
        help="features of many images, through a gateway, into one file",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="file, folder, pattern, or - for standard input")
    parser.add_argument(
        "--from-file", action="append", default=[], metavar="FILE", help="a list of files, one path a line"
    )
    parser.add_argument("--out", type=_out, required=True, metavar="FILE", help="features.npz or features.parquet")
    parser.add_argument("--resume", action="store_true", help="go on with what an earlier run left; try errors again")
    parser.add_argument("--overwrite", action="store_true", help="begin anew, and replace what is there")
    gateway = parser.add_argument_group("the gateway")
    gateway.add_argument(
        "--url",
        type=_checked(check_url),
        default=f"http://127.0.0.1:{os.environ.get(PORT_VARIABLE, '8080')}",
        help=f"its address (this machine's, {PORT_VARIABLE} or 8080)",
    )
    gateway.add_argument("--api-key-file", type=Path, metavar="FILE", help="a file with the API key and nothing else")
    gateway.add_argument("--model", metavar="NAME", help="the model; the gateway's own choice if not given")
    gateway.add_argument("--model-version", metavar="VERSION", help="only this version of it")
    gateway.add_argument("--normalize", action="store_true", help="features of unit length (L2)")
    sending = parser.add_argument_group("how it is sent")
    sending.add_argument("--batch", type=_from_to(1, 4096), default=16, metavar="N", help="files a request (16)")
    sending.add_argument(
        "--batch-bytes",
        type=_size,
        default="4MiB",
        metavar="SIZE",
        help="bytes a request, if it has several files (4MiB)",
    )
    sending.add_argument(
        "--max-file-bytes", type=_size, default="64MiB", metavar="SIZE", help="larger files are not sent (64MiB)"
    )
    sending.add_argument(
        "--concurrency", type=_concurrency, default="auto", metavar="N", help="requests at one time; auto finds it out"
    )
    sending.add_argument(
        "--retries", type=_from_to(0, 100), default=8, metavar="N", help="how often a request is sent again (8)"
    )
    sending.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="for one request and its answer (60)"
    )
    telling = parser.add_argument_group("what is told")
    telling.add_argument("--quiet", action="store_true", help="no progress; errors and the summary only")
    telling.add_argument(
        "--progress-every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="where there is no terminal, a line every so many seconds (10)",
    )
    parser.set_defaults(run=lambda options: run(parser, options))


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """0 when every input has features, 1 when not or when the run ended early, 130 after Ctrl-C."""
    if not options.paths and not options.from_file:
        parser.error("name what to take: PATH, or --from-file")
    if options.resume and options.overwrite:
        parser.error("--resume goes on, and --overwrite begins anew: give one of them")
    bar = sys.stderr.isatty() and not options.quiet
    if missing := _missing(options.out, bar):
        return _refused(missing)
    try:
        key = _key(options.api_key_file)
    except ValueError as error:
        return _refused(str(error))
    return _extract(_job(options, key), _display(options, bar))


def _extract(job: Job, display: Display) -> int:
    from tidegate.extraction import extract, is_finished, spool_folder  # it brings httpx and numpy

    if job.resume and is_finished(job):
        print(f"{job.out} is there, and no run for it was left unfinished. --overwrite makes it anew.")
        return 0
    try:
        summary = extract(job, display)
    except (Interrupted, KeyboardInterrupt) as end:
        number = end.number if isinstance(end, Interrupted) else signal.SIGINT
        print(f"tidegate: interrupted. {_HOW_TO_GO_ON}", file=sys.stderr)
        return 128 + number
    except BulkError as error:
        known = isinstance(error, NoRoom) or not isinstance(error, SpoolError | DifferentModel)
        go_on = known and spool_folder(job.out).exists()
        return _refused(f"{error} {_HOW_TO_GO_ON}" if go_on else str(error))
    print(_told(job, summary))
    return 1 if summary.failed else 0


_HOW_TO_GO_ON = "What was answered is kept: the same command with --resume goes on from there."


def _job(options: argparse.Namespace, key: str | None) -> Job:
    from tidegate.bulk import Plan
    from tidegate.delivery import Retries
    from tidegate.extraction import Embed, Job
    from tidegate.inputs import Sources

    return Job(
        sources=Sources(tuple(options.paths), tuple(options.from_file)),
        out=options.out,
        url=options.url,
        key=key,
        task=Embed(options.model, options.model_version, options.normalize),
        plan=Plan(
            batch=options.batch,
            batch_bytes=options.batch_bytes,
            most_file_bytes=options.max_file_bytes,
            concurrency=options.concurrency,
            retries=Retries(options.retries),
        ),
        timeout_s=options.timeout,
        resume=options.resume,
        overwrite=options.overwrite,
    )


def _display(options: argparse.Namespace, bar: bool) -> Display:
    from tidegate.progress import Bar, Lines, Silent

    if options.quiet:
        return Silent()
    if not bar:
        return Lines(options.progress_every)
    from tqdm import tqdm  # only where there is a terminal

    return Bar(tqdm(unit=" files", dynamic_ncols=True, smoothing=0.1, file=sys.stderr))


def _told(job: Job, summary: Summary) -> str:
    from tidegate.progress import duration

    good = summary.rows - summary.failed
    lines = [f"{job.out}: features of {good:,} of {summary.rows:,} files"]
    if summary.model is not None:
        model = summary.model
        lines[0] += f", {model.dim:,} values each, by {model.name} version {model.version}"
    rate = summary.sent / max(summary.seconds, 1e-9)
    known = summary.rows - summary.sent
    lines.append(
        f"{duration(summary.seconds)}, {rate:,.1f} files a second" + (f", {known:,} known before" if known else "")
    )
    lines += [f"{count:>9,}  {code} (the first: {path!r})" for code, count, path in summary.problems]
    if str(summary.skipped):
        lines.append(f"Not taken: {summary.skipped}.")
    if summary.passing:
        lines.append(
            f"{summary.passing:,} of the errors may pass: the same command with --resume tries them again. "
            f"{summary.spool} is kept for that; delete it if you will not."
        )
    return "\n".join(lines)


def _missing(out: Path, bar: bool) -> str | None:
    """What to install first, as a sentence; None if all is there."""
    needed = [("httpx", "client"), *([("tqdm", "client")] if bar else [])]
    needed += [("pyarrow", "parquet")] if out.suffix == ".parquet" else []
    extras: dict[str, str] = {}
    for name, extra in needed:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            extras[name] = extra
        except ImportError as error:
            return f"{name} is installed, but cannot be used: {error}."
    if not extras:
        return None
    wanted = ",".join(sorted(set(extras.values())))
    return f"`tidegate embed` needs {' and '.join(extras)} for this: pip install 'tidegate[{wanted}]'"


def _key(file: Path | None) -> str | None:
    """The API key, if there is one. Raises `ValueError`, which never repeats it."""
    if file is None:
        given = os.environ.get(KEY_VARIABLE)
        return _named(KEY_VARIABLE, given) if given else None
    try:
        with open(file, "rb") as stream:
            content = stream.read(4096)
    except OSError as error:
        raise ValueError(f"The key file {file} cannot be read: {error.strerror}.") from error
    return _named(str(file), content.decode("utf-8", "replace"))


def _named(where: str, key: str) -> str:
    try:
        return check_key(key)
    except ValueError as error:
        raise ValueError(f"In {where} {error}.") from None


def _refused(sentence: str) -> int:
    print(f"tidegate: {sentence}", file=sys.stderr)
    return 1


def _checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """`check` for argparse, which shows only its own kind of error with its words."""

    def parse(text: str) -> T:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def _out(text: str) -> Path:
    path = Path(text)
    if path.suffix not in SUFFIXES or not path.stem:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {' or '.join(SUFFIXES)}")
    return path


def _from_to(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _concurrency(text: str) -> int | None:
    return None if text == "auto" else _from_to(1, 256)(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,11})\s*([kmg]ib)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4MiB, 512KiB or 1000000")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)
