"""Trains a model on texts with labels, and publishes it: TF-IDF with a logistic regression, or features (--embed)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from build_engines.given import share
from build_engines.text.build import MODELS, SAMPLE, SAMPLE_HELD_OUT, SAMPLES, TextOrder, build_text
from build_engines.text.feeds import is_address, public_address

EXAMPLES = f"""\
examples:
  python -m build_engines text                                        the sample, {SAMPLE}
  python -m build_engines text --train news.csv --valid other.csv     your own, with the columns label, title, text
  python -m build_engines text --train mail.csv --label folder --text subject body --model mail
  python -m build_engines text --feed https://example.org/news.rss --drop-rare
  python -m build_engines text --train news.csv --embed --dim 64      features
also:
  python -m build_engines --list --model text_classifier              versions; --rollback, --promote, --beside as ever
"""


def main(arguments: Sequence[str], again: Callable[[Sequence[str]], str], model_name: Callable[[str], str]) -> int:
    """Builds; 0. `again` makes a command for a certificate, `model_name` refuses a name that cannot be one."""
    parser = argparse.ArgumentParser(
        prog="python -m build_engines text",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser)
    options = parser.parse_args(arguments)
    sample = options.train is None and options.feed is None
    order = TextOrder(
        train=options.train or options.feed or str(SAMPLES / SAMPLE),
        is_feed=options.feed is not None,
        valid=options.valid or (str(SAMPLES / SAMPLE_HELD_OUT) if sample else None),
        columns=tuple(options.text),
        label=options.label,
        drop_rare=options.drop_rare,
        task="text_embed" if options.embed else "text_classify",
        dim=options.dim,
        model=model_name(options.model) if options.model else "",
        repository=options.repository,
        moderation=options.moderation,
        min_accuracy=options.min_accuracy,
        command=again(["text", *map(_public, arguments)]),
        force=options.force,
        promote=not options.stage,
        unless_chosen=options.unless_chosen,
    )
    build_text(replace(order, pin=not options.unless_chosen and _differs(order)))
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    texts = parser.add_argument_group("the texts")
    sources = texts.add_mutually_exclusive_group()
    sources.add_argument("--train", metavar="FILE", help=f"a table, .csv or .tsv (default: the sample, {SAMPLE})")
    sources.add_argument("--feed", metavar="ADDRESS", help="RSS or Atom, http, https or a file; categories are labels")
    texts.add_argument("--label", metavar="COLUMN", help='the column of labels (default: "label")')
    texts.add_argument(
        "--text", nargs="+", default=[], metavar="COLUMN", help='columns of the text (default: "title" and "text")'
    )
    texts.add_argument("--drop-rare", action="store_true", help="leave out labels with too few texts")
    model = parser.add_argument_group("the model")
    model.add_argument("--embed", action="store_true", help="features, in place of classes")
    model.add_argument("--dim", type=_dimensions, default=128, metavar="N", help="of features (default: %(default)s)")
    model.add_argument("--moderation", type=Path, metavar="FILE", help="labels to report, as docs/texts.md says")
    model.add_argument("--force", action="store_true", help="build even when nothing has changed")
    model.add_argument("--stage", action="store_true", help="publish the version, but go on serving another")
    model.add_argument(
        "--unless-chosen", action="store_true", help="do nothing where a person put another version or model in place"
    )
    gate = parser.add_argument_group("the gate")
    gate.add_argument(
        "--valid", metavar="FILE", help="texts to judge with (default: every fifth of those to learn from)"
    )
    gate.add_argument("--min-accuracy", type=share, metavar="SHARE", help="0 to 1: right on those, at least")
    where = parser.add_argument_group("where")
    where.add_argument("--repository", type=Path, default=Path("model_repository"), metavar="PATH")
    where.add_argument(
        "--model", default="", metavar="NAME", help=f"what callers will name (default: {' or '.join(MODELS.values())})"
    )


def _public(argument: str) -> str:
    """An argument without what may be secret in an address: a certificate is shown to everyone."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{public_address(value) if is_address(value) else value}"


def _differs(order: TextOrder) -> bool:
    """Whether it is something else than `make up` would build of the sample."""
    same = {name: getattr(order, name) for name in ("train", "valid", "task", "repository", "command")}
    return replace(order, force=False, promote=True) != TextOrder(**same)


def _dimensions(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= 4096):
        raise argparse.ArgumentTypeError(f"{text!r:.60} is no number of dimensions: give one from 1 to 4096")
    return int(text)
