"""The whole way from texts to a served version, in order: read, train, export, judge, publish."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines import publish
from build_engines.build import chosen
from build_engines.configs import Entry, Serving
from build_engines.errors import BuildError, SourceError, TextSetError
from build_engines.given import read_file
from build_engines.moderation import read_moderation
from build_engines.text.texts import Material, TextSet, check_labels

if TYPE_CHECKING:
    from build_engines.text.serving.engine import Engine
    from build_engines.text.train import Trained

MODELS = {"text_classify": "text_classifier", "text_embed": "text_embedder"}
"""Usual names, by task."""

SAMPLES = Path(__file__).parents[2] / "examples" / "texts"
SAMPLE, SAMPLE_HELD_OUT = "headlines.csv", "held-out.csv"

MAX_BATCH = 256  # as many as the gateway lets through in one request
SERVING = Serving(
    platform='backend: "python"',
    variant="",
    max_batch=MAX_BATCH,
    instances=1,
    delay_us=0,
    why={
        "head": "Texts → {what}. The same on GPU and CPU servers: it is quick on a processor.",
        "instance_group": "One process answers thousands of texts a second (docs/adr/0014-texts.md).",
    },
)
_CONTRADICTIONS = "rows of {} with another label for a text that it has already: {}, left out"
_WHAT = {"text_classify": "class probabilities", "text_embed": "features"}

_PACKAGE = Path(__file__).parent
_SERVED = ("model.py", "engine.py", "words.py")
_PACKAGES = ("numpy", "onnx", "onnxruntime", "scikit-learn", "skl2onnx")

Say = Callable[[str], object]


@dataclass(frozen=True)
class TextOrder:
    """What a user wants built."""

    train: str = str(SAMPLES / SAMPLE)
    """A table (CSV, TSV), or a feed: a file or an http or https address."""
    is_feed: bool = False
    valid: str | None = None
    """To judge with, in the same form; None: every fifth text of `train`, which is then not learnt from."""
    columns: tuple[str, ...] = ()
    """What is read of a row; none: `title` and `text`, if they are there."""
    label: str | None = None
    """The column of the labels; None: `label`."""
    drop_rare: bool = False
    """Whether labels with too few texts are left out, in place of an error."""
    task: str = "text_classify"
    dim: int = 128
    """Of features."""
    model: str = ""
    """What callers will name; "": the usual name for the task."""
    repository: Path = Path("model_repository")
    moderation: Path | None = None
    """Which labels are reported as which category by `POST /v1/moderations`."""
    min_accuracy: float | None = None
    """Of held-out texts, 0 to 1; None: better than always the same answer."""
    command: str = ""
    """What makes the same again."""
    force: bool = False
    promote: bool = True
    pin: bool = False
    """Whether a person asks for just this, so that no automatic build takes its place."""
    unless_chosen: bool = False
    """Whether to leave what is served as it is where a person put it there."""


def build_text(order: TextOrder, say: Say = print) -> Path | None:
    """Builds what is ordered, publishes it, and returns the version's folder; None where a person chose another.

    Does nothing when the version that is served was made of the same things, unless `force` is set, and then takes no
    more than the time to read the files. Says a line about what was done. Raises `BuildError` when it cannot; what was
    served before is then served still.
    """
    start = time.perf_counter()
    name = order.model or MODELS[order.task]
    entry = Entry(order.repository, name, order.task)
    publish.check_names(entry)
    source = Material.of(order.train, is_feed=order.is_feed)
    if order.unless_chosen and (reason := chosen(entry, "", source.name)):
        say(f"{name}: {reason}: left as it is")
        return None
    valid = None if order.valid is None else Material.of(order.valid)
    inputs = _inputs(order, source, valid)
    if not order.force and (folder := _up_to_date(order, entry, inputs, say)):
        return folder

    learnt, held_out, rows = _texts(order, source, valid, lambda line: say(f"{name}: {line}"))
    shown = _shown(order, learnt)
    trained, files, engine_facts = _trained(order, learnt, held_out)
    folder = publish.stage(
        entry,
        files,
        serving=_serving(order.task),
        width=trained.width,
        shown=shown,
        certificate={
            "model": name,
            "task": order.task,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": order.command or "python -m build_engines text",
            **inputs,
            "source": {
                **inputs["source"],
                "rows": rows,
                "columns": list(learnt.columns),
                "contradictions": learnt.contradictions,
            },
            "labels": {"sha256": _sha256(files["labels.txt"])} if trained.labels else None,
            "python": platform.python_version(),
            "device": "CPU",
            **engine_facts,
        },
    )
    if order.promote:
        publish.promote(entry, folder.name)
        publish.pin(entry, folder.name if order.pin else None)
    accuracy = engine_facts["agreement"]["accuracy"]
    of = "the nearest of them has the label of" if order.task == "text_embed" else "right on"
    how_well = "" if accuracy is None else f", {of} {accuracy:.1%} of {len(held_out)} others"
    did = "built" if order.promote else "staged, not served,"
    seconds = time.perf_counter() - start
    say(f"{name}: {did} version {folder.name} from {len(learnt)} texts{how_well}, in {seconds:.1f} s in {folder}")
    return folder


def build_samples(repository: Path, say: Say = print, *, unless_chosen: bool = True) -> None:
    """The two models of the default repository, from the sample headlines; quick when they are there."""
    for task in MODELS:
        valid = str(SAMPLES / SAMPLE_HELD_OUT)
        command = f"python -m build_engines text --valid {SAMPLE_HELD_OUT}{' --embed' if task == 'text_embed' else ''}"
        order = TextOrder(valid=valid, task=task, repository=repository, command=command, unless_chosen=unless_chosen)
        build_text(order, say)


def _texts(order: TextOrder, source: Material, valid: Material | None, say: Say) -> tuple[TextSet, TextSet, int]:
    """What to learn from, what to judge with, and how many different texts the source has.

    Says a line about texts that are left out. What is longer than what is read when serving is not judged with.
    """
    from build_engines.text.serving.words import MAX_CHARS, read_words

    classify = order.task == "text_classify"
    every = source.texts(order.columns, order.label, needs_labels=classify)
    if every.contradictions:
        say(_CONTRADICTIONS.format(source.name, every.contradictions))
    rows = len(every)
    if order.drop_rare:
        every = every.without_rare_labels()
    if classify:
        check_labels(every, source.name)
    if valid is None:
        learnt, held_out = every.split()
    else:
        learnt = every
        held_out = valid.texts(every.columns, order.label, needs_labels=classify)
        if held_out.contradictions:
            say(_CONTRADICTIONS.format(valid.name, held_out.contradictions))
        if classify and (unknown := sorted(set(held_out.labels) - set(learnt.labels))):
            raise TextSetError(f"{valid.name} has the label {unknown[0]!r}, which {source.name} has not.")
    read = tuple(text for text in held_out.texts if read_words(text.joined)[1])
    if len(read) < len(held_out):
        say(f"texts to judge with that are longer than {MAX_CHARS:,} characters: {len(held_out) - len(read)}, left out")
    held_out = replace(held_out, texts=read)
    if not len(learnt) or not len(held_out):
        raise TextSetError(f"{source.name if valid is None else valid.name} has too few texts to judge with: add some.")
    return learnt, held_out, rows


def _shown(order: TextOrder, learnt: TextSet) -> dict[str, str]:
    """What the gateway is told of the model beside its task."""
    if order.task == "text_embed":
        if order.moderation is not None:
            raise SourceError("Features have no labels that could be moderated: leave --moderation or --embed out.")
        return {"normalised": "l2"}
    if order.moderation is None:
        return {}
    return {"moderation": json.dumps(read_moderation(_read(order.moderation), learnt.labels))}


def _trained(order: TextOrder, learnt: TextSet, held_out: TextSet) -> tuple[Trained, dict[str, bytes], dict[str, Any]]:
    """The trained model, the files of its version, and what a certificate says of them. Raises `GateError`."""
    from build_engines.text.export import export
    from build_engines.text.gate import judge, performance
    from build_engines.text.serving.engine import Engine
    from build_engines.text.train import train

    trained = train(order.task, learnt, order.dim)
    files = {name: (_PACKAGE / "serving" / name).read_bytes() for name in _SERVED}
    files["model.onnx"] = export(trained)
    files["vocabulary.txt"] = "\n".join(sorted(trained.words)).encode()
    if trained.labels:
        files["labels.txt"] = "".join(f"{label}\n" for label in trained.labels).encode()
    with tempfile.TemporaryDirectory(prefix="tidegate-text-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        engine = Engine(Path(folder))
        kind = "held out" if order.valid is None else "given"
        agreement = judge(trained, engine, learnt, held_out, kind, order.min_accuracy)
        files["check.json"] = _check(engine, sorted(trained.words))
        speed = performance(engine, [text.columns[0] for text in held_out.texts])
    vectoriser = {
        "terms": len(trained.vectoriser.vocabulary_),
        "words": len(trained.words),
        "words_sha256": _sha256(files["words.py"]),
        "unicode": unicodedata.unidata_version,
        "model_sha256": _sha256(files["model.onnx"]),
    }
    return trained, files, {"vectoriser": vectoriser, "agreement": asdict(agreement), "performance": speed}


def _check(engine: Engine, words: list[str]) -> bytes:
    """Texts of known words, and such as are likely to go wrong, with their answers: Triton asks them at its start."""
    step = max(1, len(words) // 8)
    texts = [" ".join(words[index : index + step][:12]) for index in range(0, 8 * step, step)]
    texts += ["", "caf\u00e9 cafe\u0301", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u6771\u4eac", "\U0001f642 \0 !"]
    rows, shares = engine(texts)
    return json.dumps({"texts": texts, "rows": rows.tolist(), "known_words": shares.tolist()}).encode() + b"\n"


def _inputs(order: TextOrder, source: Material, valid: Material | None) -> dict[str, Any]:
    """Everything that a model is made of, as its certificate names it; quick to find out."""
    code = b"\0".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return {
        "source": {"name": source.name, "weights": "file", "sha256": source.sha256},
        "target": "onnxruntime",
        "precision": "fp32",
        "versions": _versions(),
        "builder": {
            "sha256": _sha256(code),
            "valid": valid.sha256 if valid else None,
            "columns": list(order.columns),
            "label": order.label,
            "drop_rare": order.drop_rare,
            "dim": order.dim if order.task == "text_embed" else None,
            "min_accuracy": order.min_accuracy,
            "moderation": _sha256(_read(order.moderation)) if order.moderation else None,
        },
    }


def _versions() -> dict[str, str]:
    found = {"unicode": unicodedata.unidata_version}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise BuildError(f"The package {package} is not installed: pip install 'tidegate[build,text]'.") from error
    return found


def _up_to_date(order: TextOrder, entry: Entry, inputs: Mapping[str, Any], say: Say) -> Path | None:
    """The folder of a version that was made of the same things, made the served one; None if there is none."""
    for number in reversed(publish.versions(entry)):
        found = publish.Version.of(entry, number)
        if found is not None and _made_of(found.certificate) == inputs:
            if order.promote:
                publish.promote(entry, number)
                publish.pin(entry, number if order.pin else None)
            say(f"{entry.model}: version {number} is up to date in {found.folder}")
            return found.folder
    return None


def _made_of(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """What `_inputs` says, out of a certificate."""
    keys = ("target", "precision", "versions", "builder")
    source = {key: certificate["source"].get(key) for key in ("name", "weights", "sha256")}
    return {"source": source, **{key: certificate.get(key) for key in keys}}


def _serving(task: str) -> Serving:
    why = {part: text.format(what=_WHAT[task]) for part, text in SERVING.why.items()}
    return Serving(**{**asdict(SERVING), "why": why})


def _read(path: Path) -> bytes:
    return read_file(path, SourceError)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
