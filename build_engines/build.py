"""The whole way from installed weights to a published model: fingerprint, read, build, check, publish."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError, SourceError
from build_engines.publish import publish, published
from build_engines.sources import INSTALL, Checkpoint, Source, find_checkpoint

_HERE = Path(__file__).parent
_PROGRAM = _HERE / "serving" / "onnx_classifier.py"

# A change of any of these can change what is published.
_BUILDER = ("checkpoint.py", "efficientnet_lite.py", "preprocessing.py", "serving/onnx_classifier.py")


def build(source: Source, entry: Path, *, force: bool = False, say: Callable[[str], object] = print) -> Path:
    """Builds `source` into `entry`, a model's folder in a repository, and returns the version's folder.

    Does nothing when the published version was made of the same things, unless `force` is set. Says one line
    about what it did. Raises `BuildError` when it cannot; what was published before is then still in place.
    """
    start = time.perf_counter()
    preprocess, labels = (_read(entry / name) for name in ("preprocess.json", "labels.txt"))
    checkpoint = find_checkpoint(source)
    inputs = _inputs(source, checkpoint, preprocess, labels)
    present = published(entry)
    if present and not force and all(present[1].get(key) == value for key, value in inputs.items()):
        say(f"{entry.name}: version {present[0].name} is up to date in {present[0]}")
        return present[0]
    content = _graph(source, checkpoint, preprocess, entry / "labels.txt")
    folder = publish(
        entry,
        {"model.onnx": content, "model.py": _PROGRAM.read_bytes()},
        {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": f"python -m build_engines {source.name}",
            "precision": "fp32",
            **inputs,
            "versions": {
                "python": platform.python_version(),
                **{package: _version(package) for package in ("numpy", "onnxruntime")},
            },
        },
    )
    seconds = time.perf_counter() - start
    say(f"{entry.name}: built version {folder.name} from {source.name} in {seconds:.1f} s in {folder}")
    return folder


def _graph(source: Source, checkpoint: Checkpoint, preprocess: bytes, labels: Path) -> bytes:
    """The checked model as the content of an ONNX file: the same bytes from the same inputs."""
    try:
        from build_engines import gate
        from build_engines.checkpoint import read_checkpoint
        from build_engines.preprocessing import read_normalisation

        normalisation = read_normalisation(preprocess)
        if normalisation.color != source.color:
            raise SourceError(
                f"preprocess.json gives {normalisation.color} images, and {source.name} needs {source.color}: "
                "change its color, mean and std."
            )
        model = source.graph(read_checkpoint(checkpoint.content), normalisation)
        content: bytes = model.SerializeToString(deterministic=True)
        gate.check(content, labels)
    except ModuleNotFoundError as error:
        raise BuildError(f"The package {error.name} is not installed: {INSTALL}.") from error
    return content


def _inputs(source: Source, checkpoint: Checkpoint, preprocess: bytes, labels: bytes) -> dict[str, Any]:
    """Everything that a model is made of, as its certificate names it."""
    builder = b"\0".join((_HERE / name).read_bytes() for name in _BUILDER)
    return {
        "source": {
            "name": source.name,
            "package": source.package,
            "package_version": checkpoint.package_version,
            "license": source.license,
            "file": source.file,
            "sha256": hashlib.sha256(checkpoint.content).hexdigest(),
        },
        "preprocess": {"file": "preprocess.json", "sha256": hashlib.sha256(preprocess).hexdigest()},
        "labels": {"file": "labels.txt", "sha256": hashlib.sha256(labels).hexdigest()},
        "builder": {"onnx": _version("onnx"), "sha256": hashlib.sha256(builder).hexdigest()},
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read ({error.strerror}): "
            "run this in the project's folder, or name the model repository with --repository."
        ) from error


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise BuildError(f"The package {package} is not installed: {INSTALL}.") from error
