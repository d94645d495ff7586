"""The command `python -m build_engines SOURCE`: builds a model and publishes it in a model repository."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from build_engines.build import build
from build_engines.errors import BuildError
from build_engines.sources import SOURCES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 1 after one sentence on standard error."""
    options = _parser().parse_args(arguments)
    try:
        build(SOURCES[options.source], options.repository / options.model, force=options.force)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m build_engines", description=__doc__)
    parser.add_argument("source", choices=sorted(SOURCES), help="the weights and their network")
    parser.add_argument(
        "--repository",
        type=Path,
        default=Path("model_repository"),
        metavar="PATH",
        help="the model repository (default: %(default)s)",
    )
    parser.add_argument(
        "--model",
        default="classifier",
        metavar="NAME",
        help="the model's folder in it, with its preprocess.json and labels.txt (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="build even when nothing has changed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
