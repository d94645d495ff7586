"""The command `python -m build_engines`: from a checkpoint to a certified entry of the model repository."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from build_engines import publish
from build_engines.build import DEFAULT_TARGET, Order, build, calibrate, chosen
from build_engines.configs import DEFAULT_MODEL, Entry
from build_engines.errors import BuildError, SourceError
from build_engines.given import share
from build_engines.sources import OUTPUTS, POOLS, Wish
from build_engines.sources.features import LENGTHS
from build_engines.targets.registry import TARGETS, find_target

_EXAMPLES = """\
examples:
  python -m build_engines efficientnet_lite0                          the default model
  python -m build_engines resnet50 --weights my.pth --labels my.txt \\
      --calibration photos --images labelled --precision int8         your own, quantised and judged
  python -m build_engines dinov2_vits14 --model dino                  features
  python -m build_engines efficientnet_lite0 --head head.npz \
      --model my_photos --images labelled                             a classifier trained on features
  python -m build_engines --rollback                                  serve the version before
  python -m build_engines --beside 16 --weight 0.1                    serve another one beside it (docs/versions.md)
also:
  python -m build_engines defaults --help                             what `make up` serves, where it is missing
  python -m build_engines calibrate SOURCE --help                     a table of ranges for INT8
  python -m build_engines text --help                                 models for texts
  python -m build_engines tune --help                                 instances, threads and delays for this machine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 1 after one sentence on standard error."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "tune": _tune,
        "calibrate": _calibrate,
        "defaults": _defaults,
        "text": _text,
    }
    try:
        if arguments[:1] and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        return _build(arguments)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was served before is served still", file=sys.stderr)
        return 130


def _build(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m build_engines",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _source_arguments(parser, optional=True)
    build_options = parser.add_argument_group("the engine")
    build_options.add_argument("--target", choices=TARGETS, default=DEFAULT_TARGET, help="default: %(default)s")
    build_options.add_argument(
        "--precision",
        choices=("fp32", "bf16", "fp16", "int8"),
        help="default: int8 where there is something to calibrate with, else the target's own",
    )
    build_options.add_argument("--labels", type=Path, metavar="FILE", help="a class's name a line, in their order")
    build_options.add_argument(
        "--moderation", type=Path, metavar="FILE", help="which labels /v1/moderations reports, as a JSON object"
    )
    build_options.add_argument(
        "--calibration", type=Path, metavar="PATH", help="for INT8: a folder of pictures, or a table of `calibrate`"
    )
    build_options.add_argument("--force", action="store_true", help="build even when nothing has changed")
    build_options.add_argument("--stage", action="store_true", help="publish the version, but go on serving another")
    build_options.add_argument(
        "--unless-chosen", action="store_true", help="do nothing where a person put another version or model in place"
    )
    gate_options = parser.add_argument_group("the gate")
    gate_options.add_argument(
        "--images", type=Path, metavar="FOLDER", help="pictures to judge with, labelled or not (default: built-in ones)"
    )
    gate_options.add_argument("--part", metavar="K/N", help="of --images only every N-th, from the K-th")
    gate_options.add_argument("--calibration-part", metavar="K/N", help="the same of --calibration")
    gate_options.add_argument("--min-agreement", type=share, metavar="SHARE", help="0 to 1: same best class, at least")
    gate_options.add_argument("--max-accuracy-loss", type=share, metavar="SHARE", help="0 to 1: top-1 lost, at most")
    which = parser.add_argument_group("instead of building").add_mutually_exclusive_group()
    which.add_argument("--promote", metavar="VERSION", help="serve this version")
    which.add_argument("--rollback", action="store_true", help="serve the version before")
    which.add_argument("--beside", metavar="VERSION", help="serve this version beside the one that is served")
    which.add_argument("--alone", action="store_true", help="take every version away from beside the served one")
    which.add_argument("--list", action="store_true", help="show the versions")
    shares = parser.add_argument_group("with --beside (0 where nothing is said)")
    shares.add_argument("--weight", type=share, metavar="SHARE", help="0 to 1: of the requests, answered by it")
    shares.add_argument("--shadow", type=share, metavar="SHARE", help="0 to 1: of the requests, repeated on it")
    options = parser.parse_args(arguments)
    if options.beside is None and (options.weight is not None or options.shadow is not None):
        parser.error("--weight and --shadow are shares of requests for a version that is put beside: give --beside")
    if options.promote or options.rollback or options.beside or options.alone or options.list:
        return _versions(options)
    if options.source is None:
        parser.error("name a SOURCE, such as efficientnet_lite0")
    order = _order(options, arguments)
    variant = find_target(order.target).variant
    there = publish.find_entries(order.repository, order.model) or [Entry(order.repository, order.model)]
    for entry in there if options.unless_chosen else []:
        if reason := chosen(entry, variant, order.source):
            print(f"{order.model}: {reason}: left as it is")
            return 0
    build(replace(order, pin=not options.unless_chosen and _differs(order)))
    return 0


def _differs(order: Order) -> bool:
    """Whether it is something else than `make up` would build."""
    from build_engines.defaults import orders

    same = {name: getattr(order, name) for name in ("repository", "work", "command", "force", "promote")}
    return order not in [replace(default, **same) for default in orders(order.repository, order.work)]


def _calibrate(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m build_engines calibrate",
        description="Measures the ranges of a network's activations, so that INT8 can be built without pictures.",
    )
    _source_arguments(parser, optional=False)
    parser.add_argument("--calibration", type=Path, required=True, metavar="FOLDER", help="pictures to measure on")
    parser.add_argument("--calibration-part", metavar="K/N", help="only every N-th of them, from the K-th")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table")
    options = parser.parse_args(arguments)
    calibrate(_order(options, ["calibrate", *arguments]), options.out)
    return 0


def _defaults(arguments: list[str]) -> int:
    from build_engines import defaults

    parser = argparse.ArgumentParser(prog="python -m build_engines defaults", description=defaults.__doc__)
    parser.add_argument("--target", choices=TARGETS, default=DEFAULT_TARGET, help="default: %(default)s")
    parser.add_argument("--force", action="store_true", help="build even what is there and unchanged")
    _place_arguments(parser)
    options = parser.parse_args(arguments)
    defaults.build_defaults(options.repository, options.work, target=options.target, force=options.force)
    return 0


def _tune(arguments: list[str]) -> int:
    from build_engines import tune

    parser = argparse.ArgumentParser(prog="python -m build_engines tune", description=tune.__doc__)
    tune.add_arguments(parser)
    return tune.run(parser.parse_args(arguments))


def _text(arguments: list[str]) -> int:
    from build_engines.text import command

    return command.main(arguments, _again, _model_name)


def _source_arguments(parser: argparse.ArgumentParser, *, optional: bool) -> None:
    parser.add_argument(
        "source",
        nargs="?" if optional else None,
        metavar="SOURCE",
        help="efficientnet_lite0, open_nsfw; resnet50, torchvision/NAME, timm/NAME; dinov2_vits14, …; "
        "a .onnx, .pt2 or .pt file",
    )
    group = parser.add_argument_group("the source")
    group.add_argument("--weights", metavar="FILE", help='a checkpoint (.pth, .safetensors), "pretrained" or "random"')
    group.add_argument("--classes", type=int, metavar="N", help="of a network with random weights")
    group.add_argument("--size", type=int, metavar="PIXELS", help="side of the network's input")
    group.add_argument("--task", choices=sorted(OUTPUTS), help="what the network is for (default: the source's own)")
    group.add_argument("--preprocess", type=Path, metavar="FILE", help="a preprocess.json in place of the source's own")
    group.add_argument("--normalise", choices=LENGTHS, help="of features: l2 gives them length 1 (default: l2)")
    group.add_argument("--pool", choices=POOLS, help="what features of DINO are made of (default: class)")
    group.add_argument("--head", type=Path, metavar="FILE", help="a .npz with a linear classifier of the features")
    where = _place_arguments(parser)
    where.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="NAME", help="what callers will name (default: %(default)s)"
    )


def _place_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    where = parser.add_argument_group("where")
    where.add_argument(
        "--repository", type=Path, default=Path("model_repository"), metavar="PATH", help="default: %(default)s"
    )
    where.add_argument(
        "--work",
        type=Path,
        default=Path(".build_engines"),
        metavar="PATH",
        help="intermediate results and reports (default: %(default)s)",
    )
    return where


def _model_name(name: str) -> str:
    """`name` if it can be one: it becomes folders and lines of configurations."""
    if not name or not all(c.isascii() and (c.isalnum() or c in "_-.") for c in name) or name.startswith("."):
        raise SourceError(f"{name!r} cannot be a model's name: use letters, digits, _, - and a dot inside.")
    return name


def _order(options: argparse.Namespace, arguments: Sequence[str]) -> Order:
    name = _model_name(options.model)
    given = vars(options)
    return Order(
        source=options.source,
        wish=Wish(
            options.weights,
            options.classes,
            options.size,
            options.task,
            normalise=options.normalise,
            pool=options.pool,
            head=options.head,
        ),
        repository=options.repository,
        model=name,
        target=given.get("target", DEFAULT_TARGET),
        precision=given.get("precision"),
        preprocess=options.preprocess,
        labels=given.get("labels"),
        moderation=given.get("moderation"),
        calibration=options.calibration,
        calibration_part=options.calibration_part,
        images=given.get("images"),
        part=given.get("part"),
        min_agreement=given.get("min_agreement"),
        max_accuracy_loss=given.get("max_accuracy_loss"),
        work=options.work,
        command=_again(arguments),
        force=given.get("force", False),
        promote=not given.get("stage", False),
    )


_NOT_REPEATED = ("--force", "--unless-chosen", "--stage")


def _again(arguments: Sequence[str]) -> str:
    """The command that builds the same, for a certificate: with the names of files, without their folders."""
    words = []
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        short = Path(value).name if os.path.isabs(value) or os.path.exists(value) else value
        if word not in _NOT_REPEATED:
            words.append(f"{option}{equals}{short}")
    return shlex.join(["python", "-m", "build_engines", *words])


def _versions(options: argparse.Namespace) -> int:
    """Promotes, rolls back, puts beside or lists, for whichever task and configuration the model has."""
    model = _model_name(options.model)
    entries = publish.find_entries(options.repository, model)
    if not entries:
        raise SourceError(f"{options.repository} has no versions of {model}.")
    for entry in entries:
        if options.promote:
            publish.promote(entry, options.promote)
            publish.pin(entry, options.promote)
            print(f"{model}: version {options.promote} is served")
        elif options.rollback:
            version = publish.rollback(entry, "" if entry.single else find_target(options.target).variant)
            publish.pin(entry, version)
            print(f"{model}: version {version} is served")
        elif options.beside:
            candidate = publish.beside(entry, options.beside, weight=options.weight or 0, shadow=options.shadow or 0)
            main = publish.served(entry, candidate.variant)
            print(f"{model}: version {candidate.version} is served {_shares(candidate, main)}")
        elif options.alone:
            taken = publish.leave_alone(entry)
            print(f"{model}: {_listed(taken)}")
        else:
            _list(entry)
    return 0


def _listed(taken: Sequence[str]) -> str:
    match taken:
        case []:
            return "no version was beside another"
        case [one]:
            return f"version {one} is not served beside another any more"
    return f"versions {', '.join(taken)} are not served beside another any more"


def _shares(candidate: publish.Candidate, main: str | None = None) -> str:
    beside = f"beside version {main}" if main else "beside"
    return f"{beside}, weight {candidate.weight:g}, shadow {candidate.shadow:g}"


def _list(entry: Entry) -> None:
    """A line for each version."""
    states = {number: "served" for variant in publish.VARIANTS if (number := publish.served(entry, variant))}
    beside = {candidate.version: _shares(candidate) for candidate in publish.candidates(entry)}
    for variant in publish.VARIANTS:
        number, own = publish.served(entry, variant), publish.served_ensemble(entry, variant)
        if number and own and own != number:
            beside[number] = f"answers as version {own}"
    for number in publish.versions(entry):
        certificate = publish.read_certificate(entry.folder / number)
        if certificate is None:
            print(f"{number:>4}  not whole, or of an older form")
            continue
        agreement, source = certificate.get("agreement") or {}, certificate.get("source") or {}
        columns = [
            f"{number:>4}",
            f"{states.get(number, ''):6}",
            str(certificate.get("created", ""))[:16],
            *(
                str(part)
                for part in (source.get("name"), certificate.get("target"), certificate.get("precision"))
                if part
            ),
            *([f"deviation {agreement['deviation']:.3f}"] if "deviation" in agreement else []),
            *([beside[number]] if number in beside else []),
        ]
        print("  ".join(columns))


if __name__ == "__main__":
    sys.exit(main())
