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
from build_engines.sources import OUTPUTS, Wish
from build_engines.targets.registry import TARGETS, find_target

_EXAMPLES = """\
examples:
  python -m build_engines efficientnet_lite0                          the default model
  python -m build_engines resnet50 --weights my.pth --labels my.txt \\
      --calibration photos --images labelled --precision int8         your own, quantised and judged
  python -m build_engines dinov2_vits14 --model dino                  features
  python -m build_engines --rollback                                  serve the version before
also:
  python -m build_engines calibrate SOURCE --help                     a table of ranges for INT8
  python -m build_engines tune --help                                 instances, threads and delays for this machine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 1 after one sentence on standard error."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {"tune": _tune, "calibrate": _calibrate}
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
    gate_options.add_argument("--min-agreement", type=_share, metavar="SHARE", help="0 to 1: same best class, at least")
    gate_options.add_argument("--max-accuracy-loss", type=_share, metavar="SHARE", help="0 to 1: top-1 lost, at most")
    which = parser.add_argument_group("instead of building").add_mutually_exclusive_group()
    which.add_argument("--promote", metavar="VERSION", help="serve this version")
    which.add_argument("--rollback", action="store_true", help="serve the version before")
    which.add_argument("--list", action="store_true", help="show the versions")
    options = parser.parse_args(arguments)
    if options.promote or options.rollback or options.list:
        return _versions(options)
    if options.source is None:
        parser.error("name a SOURCE, such as efficientnet_lite0")
    order = _order(options, arguments)
    entry = Entry(order.repository, order.model)
    if options.unless_chosen and (reason := chosen(entry, find_target(order.target).variant, order.source)):
        print(f"{order.model}: {reason}: left as it is")
        return 0
    build(replace(order, pin=not options.unless_chosen and _differs(order)))
    return 0


def _differs(order: Order) -> bool:
    """Whether it is something else than `make up` would build."""
    same = {name: getattr(order, name) for name in ("repository", "work", "command", "force", "promote")}
    return order != Order(**same)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


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


def _tune(arguments: list[str]) -> int:
    from build_engines import tune

    parser = argparse.ArgumentParser(prog="python -m build_engines tune", description=tune.__doc__)
    tune.add_arguments(parser)
    return tune.run(parser.parse_args(arguments))


def _source_arguments(parser: argparse.ArgumentParser, *, optional: bool) -> None:
    parser.add_argument(
        "source",
        nargs="?" if optional else None,
        metavar="SOURCE",
        help="efficientnet_lite0; resnet50, torchvision/NAME, timm/NAME; dinov2_vits14, …; a .onnx, .pt2 or .pt file",
    )
    group = parser.add_argument_group("the source")
    group.add_argument("--weights", metavar="FILE", help='a checkpoint (.pth, .safetensors), "pretrained" or "random"')
    group.add_argument("--classes", type=int, metavar="N", help="of a network with random weights")
    group.add_argument("--size", type=int, metavar="PIXELS", help="side of the network's input")
    group.add_argument("--task", choices=sorted(OUTPUTS), help="what the network is for (default: the source's own)")
    group.add_argument("--preprocess", type=Path, metavar="FILE", help="a preprocess.json in place of the source's own")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--repository", type=Path, default=Path("model_repository"), metavar="PATH", help="default: %(default)s"
    )
    where.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="NAME", help="what callers will name (default: %(default)s)"
    )
    where.add_argument(
        "--work",
        type=Path,
        default=Path(".build_engines"),
        metavar="PATH",
        help="intermediate results and reports (default: %(default)s)",
    )


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
        wish=Wish(options.weights, options.classes, options.size, options.task),
        repository=options.repository,
        model=name,
        target=given.get("target", DEFAULT_TARGET),
        precision=given.get("precision"),
        preprocess=options.preprocess,
        labels=given.get("labels"),
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
    """Promotes, rolls back or lists, for whichever task and configuration the model has."""
    found = False
    for task in OUTPUTS:
        entry = Entry(options.repository, _model_name(options.model), task)
        if not publish.versions(entry):
            continue
        found = True
        if options.promote:
            publish.promote(entry, options.promote)
            publish.pin(entry, options.promote)
            print(f"{options.model}: version {options.promote} is served")
        elif options.rollback:
            version = publish.rollback(entry, find_target(options.target).variant)
            publish.pin(entry, version)
            print(f"{options.model}: version {version} is served")
        else:
            _list(entry)
    if not found:
        raise SourceError(f"{options.repository} has no versions of {options.model}.")
    return 0


def _list(entry: Entry) -> None:
    served = {publish.served(entry, variant) for variant in ("", "cpu")}
    for number in publish.versions(entry):
        certificate = publish.read_certificate(entry.folder / number)
        if certificate is None:
            print(f"{number:>4}  not whole, or of an older form")
            continue
        agreement = certificate["agreement"]
        print(
            f"{number:>4}  {'served' if number in served else '      '}  {certificate['created'][:16]}  "
            f"{certificate['source']['name']}  {certificate['target']}  {certificate['precision']}  "
            f"deviation {agreement['deviation']:.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
