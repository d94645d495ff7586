"""The whole way from a source to a served version, in order: load, calibrate, build, judge, publish."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines import publish
from build_engines.configs import DEFAULT_EMBEDDER, DEFAULT_MODEL, Entry
from build_engines.errors import BuildError, SourceError
from build_engines.given import read_file
from build_engines.judge import judge
from build_engines.preprocessing import Preprocessing
from build_engines.sources import Wish, find_source
from build_engines.stages import Stages
from build_engines.targets.registry import find_target

if TYPE_CHECKING:
    from build_engines.calibration import Ranges
    from build_engines.images import ImageSet
    from build_engines.sources import Network, Source
    from build_engines.targets import Calibration, Target

DEFAULT_SOURCE = "efficientnet_lite0"
DEFAULT_TARGET = "openvino"

_PACKAGE = Path(__file__).parent
_ELSEWHERE = frozenset({"text", "tuning"})  # parts of the package that no engine for pictures depends on
_FEWEST_TO_CALIBRATE = 10
_CALIBRATION_PICTURES = 512  # for a target that wants them all at once


@dataclass(frozen=True)
class Order:
    """What a user wants built."""

    source: str = DEFAULT_SOURCE
    wish: Wish = field(default_factory=Wish)
    repository: Path = Path("model_repository")
    model: str = DEFAULT_MODEL
    target: str = DEFAULT_TARGET
    precision: str | None = None
    """None: INT8 where its ranges are measured on given pictures, or known without pictures for a whole classifier;
    else the target's first. Features are kept and compared for years: nobody gets INT8 for them unasked."""
    preprocess: Path | None = None
    """A `preprocess.json`, in place of the source's own."""
    labels: Path | None = None
    """A file with a class's name a line, in place of the source's own."""
    moderation: Path | None = None
    """A file that says what classes mean for moderation, in place of what the source says."""
    calibration: Path | None = None
    """A folder of pictures, or a table of ranges, for INT8."""
    calibration_part: str | None = None
    images: Path | None = None
    """A folder of pictures to judge with."""
    part: str | None = None
    min_agreement: float | None = None
    max_accuracy_loss: float | None = None
    """Limits of the gate in place of the precision's own."""
    work: Path = Path(".build_engines")
    command: str = ""
    """What makes the same again."""
    force: bool = False
    promote: bool = True
    pin: bool = False
    """Whether a person asks for just this, so that no automatic build takes its place."""


Say = Callable[[str], object]


def build(order: Order, say: Say = print) -> Path:
    """Builds what is ordered, publishes it, and returns the version's folder.

    Does nothing when the version that is served was made of the same things, unless `force` is set. Says a line
    for each slow step and one about what was done. Raises `BuildError` when it cannot; what was served before is
    then served still.
    """
    start = time.perf_counter()
    _check(order)
    source = _source(order)
    target = find_target(order.target)
    entry = Entry(order.repository, order.model, source.task)
    _check_default(order, source.task)
    publish.check_names(entry)
    if order.wish.weights == "random" and order.model in (DEFAULT_MODEL, DEFAULT_EMBEDDER):
        raise SourceError("Random weights are for load tests and are never the default model: give another --model.")
    preprocessing = _preprocessing(order, source, entry)
    table = _table(order, source, preprocessing)
    precision = order.precision or ("int8" if table or order.calibration else target.precisions[0])
    inputs = _inputs(order, source, target, precision, preprocessing, table)
    if not order.force and (folder := _up_to_date(order, entry, inputs, say)):
        return folder

    stages = Stages(order.work / order.model, say)
    network = source.load(preprocessing.normalisation)
    labels = _labels(order, network, entry)
    shown = _shown(order, network, labels)
    calibration = _calibration(order, source, target, precision, network, preprocessing, table, stages)
    engine = target.build(network, precision, calibration, stages)
    agreement = judge(
        order, source, network, engine, precision, preprocessing, labels, stages.folder / "report.html", say
    )

    from build_engines.measure import performance

    say("measuring speed and memory")
    files = {**engine.files, "preprocess.json": preprocessing.content}
    if labels is not None:
        files["labels.txt"] = labels
    folder = publish.stage(
        entry,
        files,
        serving=engine.serving,
        size=preprocessing.recipe.size,
        width=network.width,
        shown=shown,
        certificate={
            "model": order.model,
            "task": network.task,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": order.command or _command(order),
            **inputs,
            "labels": {"sha256": hashlib.sha256(labels).hexdigest()} if labels is not None else None,
            "calibration": _origin(calibration),
            "python": platform.python_version(),
            "layers": dict(engine.layers),
            "device": engine.device,
            "agreement": asdict(agreement),
            "performance": performance(engine, precision, preprocessing.recipe.size),
        },
    )
    if order.promote:
        publish.promote(entry, folder.name)
        publish.pin(entry, folder.name if order.pin else None)
    seconds = time.perf_counter() - start
    did = "built" if order.promote else "staged, not served,"
    say(f"{order.model}: {did} version {folder.name} from {source.name} ({precision}) in {seconds:.1f} s in {folder}")
    return folder


def calibrate(order: Order, out: Path, say: Say = print) -> None:
    """Measures the ranges for INT8 on the pictures of `order.calibration` and writes the table to `out`."""
    source = _source(order)
    preprocessing = _preprocessing(order, source, Entry(order.repository, order.model, source.task))
    network = source.load(preprocessing.normalisation)
    ranges = _measured(order, source, network, preprocessing, Stages(order.work / order.model, say))
    try:
        out.write_bytes(replace(ranges, command=order.command).to_json())
    except OSError as error:
        raise BuildError(f"{out} cannot be written ({error.strerror}).") from error
    say(f"{out}: {len(ranges.values)} ranges from {ranges.images} pictures")


def chosen(entry: Entry, variant: str, source: str) -> str | None:
    """Why what is served should be left as it is: somebody chose it. None where nobody did."""
    version = publish.served(entry, variant)
    certificate = publish.read_certificate(entry.folder / version) if version else None
    if version and publish.pinned(entry) == version:
        return f"version {version} was chosen by hand"
    if certificate is None:
        return None
    made_of = (certificate.get("source") or {}).get("name")
    if made_of != source:
        return f"version {version}, made of {made_of}, is served"
    return None


def _check(order: Order) -> None:
    """`SourceError` for files that are not there, and for options that would have no effect."""
    for path in (order.preprocess, order.labels, order.moderation, order.calibration, order.images, order.wish.head):
        if path is not None and not path.exists():
            raise SourceError(f"There is no {path}.")
    if order.part is not None and order.images is None:
        raise SourceError("--part takes a part of --images: name a folder with that.")
    if order.calibration_part is not None and order.calibration is None:
        raise SourceError("--calibration-part takes a part of --calibration: name a folder with that.")


def _check_default(order: Order, task: str) -> None:
    """`SourceError` for a model in the place of a default one that is for something else."""
    for model, is_for, what in ((DEFAULT_MODEL, "classify", "classes"), (DEFAULT_EMBEDDER, "embed", "features")):
        if order.model == model and task != is_for:
            raise SourceError(f"{model} is the default model for {what}: name this one otherwise, with --model.")


def _source(order: Order) -> Source:
    recipe = None if order.preprocess is None else Preprocessing.read(_read(order.preprocess)).document
    return find_source(order.source, replace(order.wish, recipe=recipe))


def _preprocessing(order: Order, source: Source, entry: Entry) -> Preprocessing:
    """The recipe: the one given, else the source's own, else the one that lies there."""
    version = publish.served(entry, find_target(order.target).variant)
    present = entry.folder / (version or "") / "preprocess.json"
    if order.preprocess is not None:
        return Preprocessing.read(_read(order.preprocess))
    own = source.preprocess()
    if own is not None:
        preprocessing = Preprocessing.of(own)
        with suppress(BuildError):
            if (
                there := Preprocessing.read(_read(entry.folder / "preprocess.json"))
            ).document == preprocessing.document:
                return there  # as its author formatted it
        return preprocessing
    if present.is_file():
        return Preprocessing.read(_read(present))
    raise SourceError(
        f"{source.name} does not say how its pictures are prepared: write a preprocess.json "
        "(model_repository/README.md explains its keys) and name it with --preprocess."
    )


def _table(order: Order, source: Source, preprocessing: Preprocessing) -> Ranges | None:
    """The table of ranges that was given, or that ships for just this source and recipe."""
    from build_engines.calibration import TABLES, Ranges, recipe_sha256

    given = order.calibration is not None and order.calibration.is_file()
    path = order.calibration if given else TABLES / f"{source.name}.json"
    if order.precision not in (None, "int8") or path is None or not (given or order.calibration is None):
        return None
    if not given and order.precision is None and (source.task == "embed" or order.wish.head is not None):
        return None
    if not path.is_file() or find_target(order.target).calibrates_on != "ranges":
        return None
    ranges = Ranges.from_json(_read(path))
    fits = ranges.weights_sha256 == source.identity().get("sha256")
    if fits and ranges.preprocess_sha256 == recipe_sha256(preprocessing.document):
        return ranges
    if given:
        raise SourceError(f"{path} was measured with other weights or another preprocess.json: calibrate again.")
    return None


def _calibration(
    order: Order,
    source: Source,
    target: Target,
    precision: str,
    network: Network,
    preprocessing: Preprocessing,
    table: Ranges | None,
    stages: Stages,
) -> Calibration:
    """What the target fits the precision to; INT8 without pictures is refused."""
    import numpy as np

    from build_engines.targets import Calibration

    if target.calibrates_on == "ranges":
        if precision != "int8":
            return Calibration()
        if table is not None:
            return Calibration(ranges=table.within(network.graph))
        return Calibration(ranges=_measured(order, source, network, preprocessing, stages))
    if order.calibration is None and precision != "int8":
        return Calibration()
    pictures = _calibration_pictures(order).pictures[:_CALIBRATION_PICTURES]
    return Calibration(pixels=np.stack([preprocessing.pixels(picture.read()) for picture in pictures]))


def _calibration_pictures(order: Order) -> ImageSet:
    from build_engines.images import read_images

    if order.calibration is None:
        raise SourceError(
            "INT8 needs pictures to measure the ranges of activations on: name a folder of at least "
            "100 with --calibration. Noise would give a wrong engine."
        )
    pictures = read_images(order.calibration).part(order.calibration_part)
    if len(pictures) < _FEWEST_TO_CALIBRATE:
        raise SourceError(
            f"{len(pictures)} pictures are too few to calibrate on: name a folder of at least 100 with --calibration."
        )
    return pictures


def _measured(order: Order, source: Source, network: Network, preprocessing: Preprocessing, stages: Stages) -> Ranges:
    from build_engines.calibration import Ranges, measure, recipe_sha256

    pictures = _calibration_pictures(order)
    content = stages.result(
        "ranges",
        [
            hashlib.sha256(network.graph).hexdigest(),
            recipe_sha256(preprocessing.document),
            [hashlib.sha256(picture.read()).hexdigest() for picture in pictures.pictures],
        ],
        f"measuring the ranges of activations on {len(pictures)} pictures",
        lambda: Ranges(
            measure(network.graph, (preprocessing.pixels(picture.read()) for picture in pictures.pictures)),
            len(pictures),
            source.identity().get("sha256"),
            recipe_sha256(preprocessing.document),
            order.command,
        ).to_json(),
    )
    return Ranges.from_json(content)


def _labels(order: Order, network: Network, entry: Entry) -> bytes | None:
    """The content of labels.txt: the one given, else the source's own names; None for features."""
    if network.task != "classify":
        if order.labels is not None:
            raise SourceError("Features have no labels: leave --labels out.")
        return None
    if order.labels is not None:
        return _read(order.labels)
    if network.labels is not None:
        return "".join(f"{label}\n" for label in network.labels).encode()
    if order.wish.weights == "random":
        return "".join(f"class {index}\n" for index in range(network.width)).encode()
    raise SourceError(
        f"{order.source} does not name its {network.width} classes: "
        "give a file with a name a line, in their order, with --labels."
    )


def _shown(order: Order, network: Network, labels: bytes | None) -> Mapping[str, str]:
    """What callers are told of the model beside its task."""
    if order.moderation is None:
        return network.shown
    if labels is None:
        raise SourceError("Features moderate nothing: leave --moderation out, or build a classifier.")
    from build_engines.gate import read_labels
    from build_engines.moderation import read_moderation

    moderation = read_moderation(_read(order.moderation), read_labels(labels, network.width))
    return {**network.shown, "moderation": json.dumps(moderation)}


def _inputs(
    order: Order,
    source: Source,
    target: Target,
    precision: str,
    preprocessing: Preprocessing,
    table: Ranges | None,
) -> dict[str, Any]:
    """Everything that an engine is made of, as its certificate names it; quick to find out."""
    if precision not in target.precisions:
        raise SourceError(f"{target.name} builds {', '.join(target.precisions)}, not {precision}.")
    programs = sorted(path for path in _PACKAGE.rglob("*.py") if path.relative_to(_PACKAGE).parts[0] not in _ELSEWHERE)
    code = b"\0".join(path.read_bytes() for path in programs)
    pictures = {"calibration": order.calibration, "images": order.images}
    return {
        "source": dict(source.identity()),
        "preprocess": {
            "sha256": hashlib.sha256(preprocessing.content).hexdigest(),
            "pixels_sha256": preprocessing.pixels_sha256,
        },
        "target": target.name,
        "precision": precision,
        "versions": {**_versions(), **target.identity(precision)},
        "builder": {
            "sha256": hashlib.sha256(code).hexdigest(),
            "pictures": {use: _fingerprint(path) for use, path in pictures.items() if path is not None},
            "parts": [order.calibration_part, order.part],
            "limits": [order.min_agreement, order.max_accuracy_loss],
            "ranges": table.sha256 if table else None,
            "labels": hashlib.sha256(_read(order.labels)).hexdigest() if order.labels else None,
            "moderation": hashlib.sha256(_read(order.moderation)).hexdigest() if order.moderation else None,
        },
    }


def _fingerprint(path: Path) -> str:
    """Of a file's content, or of the names and sizes in a folder."""
    if path.is_file():
        return hashlib.sha256(_read(path)).hexdigest()
    files = sorted(f"{file.relative_to(path)} {file.stat().st_size}" for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def _up_to_date(order: Order, entry: Entry, inputs: Mapping[str, Any], say: Say) -> Path | None:
    """The folder of a version that was made of the same things, made the served one; None if there is none."""
    for number in reversed(publish.versions(entry)):
        folder = entry.folder / number
        certificate = publish.read_certificate(folder)
        if certificate and all(certificate.get(key) == value for key, value in inputs.items()):
            if order.promote:
                publish.promote(entry, number)
                publish.pin(entry, number if order.pin else None)
            say(f"{order.model}: version {number} is up to date in {folder}")
            return folder
    return None


def _origin(calibration: Calibration) -> Mapping[str, Any] | None:
    """What a certificate says of a calibration."""
    if (ranges := calibration.ranges) is not None:
        return {"images": ranges.images, "sha256": ranges.sha256, "command": ranges.command}
    if (pixels := calibration.pixels) is not None:
        return {"images": len(pixels), "sha256": hashlib.sha256(pixels.tobytes()).hexdigest()}
    return None


def _command(order: Order) -> str:
    return f"python -m build_engines {order.source}"


def _versions() -> dict[str, str]:
    found = {}
    for package in ("numpy", "onnx", "onnxruntime"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise BuildError(f"The package {package} is not installed: pip install 'tidegate[build]'.") from error
    return found


def _read(path: Path) -> bytes:
    return read_file(path, SourceError)
