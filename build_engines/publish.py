"""Puts finished engines into a model repository, whole or not at all.

A network's folder (such as `model_repository/classifier`) holds numbered versions. A version is complete in
itself and never changed: the engine, the recipe and the labels that it was judged with, how it is to be served,
and its certificate. Promoting one writes the configurations of all three models. They name that version and no
other, and point at its own recipe and labels; so a version that was only staged, or half written, is never served,
and an engine never gets another's labels, wherever a promotion is interrupted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from build_engines.configs import Entry, Serving, Tuning, ensemble_config, network_config, preprocessor_config
from build_engines.errors import PublishError
from build_engines.preprocessing import IMAGING, OWN_REPOSITORY

SCHEMA = 2

CERTIFICATE = "certificate.json"

# To go back to. The one that is served stays in any case.
VERSIONS_KEPT = 3


def stage(
    entry: Entry,
    files: Mapping[str, bytes],
    *,
    serving: Serving,
    size: int,
    width: int,
    certificate: Mapping[str, Any],
) -> Path:
    """Writes a new version and returns its folder; nothing is served differently yet.

    `files` hold the engine, `preprocess.json` and, for a classifier, `labels.txt`. The folder is filled beside its
    place and renamed into it. Its `certificate.json` gets the keys `schema`, `version`, `serving` and `files`
    (name → SHA-256) besides those of `certificate`.

    Raises `PublishError` when it cannot be written; what was there stays as it was.
    """
    check_names(entry)
    try:
        entry.folder.mkdir(parents=True, exist_ok=True)
        with _alone(entry):
            return _place(entry, files, {**certificate, "serving": {"size": size, "width": width, **asdict(serving)}})
    except OSError as error:
        raise _unwritable(entry.folder, error) from error


def promote(entry: Entry, version: str) -> None:
    """Makes `version` the one that is served, in the configurations of its variant.

    Every file is replaced whole, and only if it differs. Raises `PublishError` when the version is not there or
    not as it was published.
    """
    check_names(entry)
    folder = entry.folder / version
    certificate = read_certificate(folder) if version in versions(entry) else None
    if certificate is None:
        known = ", ".join(versions(entry)) or "none"
        raise PublishError(f"{entry.network} has no whole version {version}: there are {known}.")
    serving, size, width = _serving(certificate)
    tuned = serving.tuned(read_tuning(entry.folder, serving.variant))
    recipe = (folder / "preprocess.json").read_bytes()
    shown = {key: value for key, value in certificate.items() if key not in ("serving", "files")}
    recipe_sha256 = hashlib.sha256(recipe).hexdigest()
    preprocessor = preprocessor_config(entry, size=size, recipe_sha256=recipe_sha256, version=version)
    network = network_config(entry, tuned, size=size, width=width, version=version, certificate=shown)
    ensemble = ensemble_config(entry, tuned, width=width, version=version)
    try:
        with _alone(entry):
            _install_preprocessor(entry, version)
            (entry.repository / entry.model / version).mkdir(parents=True, exist_ok=True)  # empty, but Triton wants it
            _replace(entry.repository / entry.preprocessor / tuned.file, preprocessor.encode())
            _replace(entry.folder / tuned.file, network.encode())
            _replace(entry.repository / entry.model / tuned.file, ensemble.encode())
            _prune(entry)
    except OSError as error:
        raise _unwritable(entry.folder, error) from error


def check_names(entry: Entry) -> None:
    """`PublishError` when one of the entry's three folders is already another part of this or another model."""
    parts = {entry.model: "ensemble", entry.preprocessor: "preprocessor", entry.network: "network"}
    for name, part in parts.items():
        for path in sorted((entry.repository / name).glob("**/*.pbtxt")):
            text = path.read_text()
            steps = re.findall(r'^      model_name: "(.*)"$', text, re.MULTILINE)
            found = "ensemble" if steps else "preprocessor" if 'key: "preprocess"' in text else "network"
            if found != part:
                raise PublishError(f"{name} is the {found} of a model already: choose another name with --model.")
            if steps and steps != [entry.preprocessor, entry.network]:
                raise PublishError(f"{name} is of {' and '.join(steps)} already: choose another name with --model.")


@contextmanager
def _alone(entry: Entry) -> Iterator[None]:
    """While nobody else writes into the repository."""
    folder = os.open(entry.repository, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def rollback(entry: Entry, variant: str) -> str:
    """Serves the version before the one that is served now for `variant`, and returns its number."""
    now = served(entry, variant)
    if now is None:
        raise PublishError(f"{entry.network} serves nothing{f' on {variant}' if variant else ''}: nothing to undo.")
    before = [
        number
        for number in versions(entry)
        if int(number) < int(now)
        and (certificate := read_certificate(entry.folder / number)) is not None
        and certificate["serving"]["variant"] == variant
    ]
    if not before:
        raise PublishError(f"{entry.network} has no version before {now} to go back to.")
    promote(entry, before[-1])
    return before[-1]


def pin(entry: Entry, version: str | None) -> None:
    """Notes that a person chose `version`, so that no automatic build takes its place; None forgets it."""
    path = entry.folder / "pinned"
    try:
        if version is None:
            path.unlink(missing_ok=True)
        else:
            _replace(path, f"{version}\n".encode())
    except OSError as error:
        raise _unwritable(entry.folder, error) from error


def pinned(entry: Entry) -> str | None:
    """The version that a person chose."""
    path = entry.folder / "pinned"
    return path.read_text().strip() if path.is_file() else None


def served(entry: Entry, variant: str) -> str | None:
    """The number of the version that Triton is to serve for a configuration ("cpu", or "" for GPUs)."""
    file = entry.folder / (f"configs/{variant}.pbtxt" if variant else "config.pbtxt")
    try:
        found = re.search(
            r"^version_policy \{ specific \{ versions: \[ (\d+) \] \} \}$", file.read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return found[1] if found else None


def versions(entry: Entry) -> list[str]:
    """The numbers of the versions that are there, ascending."""
    if not entry.folder.is_dir():
        return []
    return sorted((p.name for p in entry.folder.iterdir() if p.is_dir() and p.name.isdecimal()), key=int)


def read_certificate(folder: Path) -> dict[str, Any] | None:
    """A version's certificate; None unless the version is whole and unchanged."""
    try:
        certificate: dict[str, Any] = json.loads((folder / CERTIFICATE).read_bytes())
        for name, sha256 in certificate["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sha256:
                return None
        _serving(certificate)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return certificate if certificate.get("version") == folder.name and certificate["schema"] == SCHEMA else None


def read_tuning(folder: Path, variant: str) -> Tuning:
    """What `tuning.json` in a network's folder says for a configuration; `Tuning()` when there is none."""
    try:
        values = json.loads((folder / "tuning.json").read_bytes())[variant]
    except (FileNotFoundError, KeyError):
        return Tuning()
    except (OSError, ValueError, TypeError) as error:
        raise PublishError(f"{folder / 'tuning.json'} cannot be used ({error}): mend it, or remove it.") from error
    try:
        for key, value in values.items():
            if type(value) is not int or value < (0 if key == "delay_us" else 1):
                raise TypeError(f"{key} is {value!r}")
        return Tuning(**values)
    except (TypeError, AttributeError) as error:
        raise PublishError(f"{folder / 'tuning.json'} cannot be used ({error}): mend it, or remove it.") from error


def retune(entry: Entry, variant: str, tuning: Tuning) -> None:
    """Writes `tuning` down for a configuration, and into the configurations of the version that is served."""
    now = served(entry, variant)
    if now is None:
        raise PublishError(f"{entry.network} serves nothing that could be tuned: build it first.")
    path = entry.folder / "tuning.json"
    try:
        every = json.loads(path.read_bytes()) if path.is_file() else {}
        every[variant] = {key: value for key, value in asdict(tuning).items() if value is not None}
        _replace(path, json.dumps(every, indent=2).encode() + b"\n")
    except OSError as error:
        raise _unwritable(entry.folder, error) from error
    promote(entry, now)


def _serving(certificate: Mapping[str, Any]) -> tuple[Serving, int, int]:
    values = dict(certificate["serving"])
    size, width = int(values.pop("size")), int(values.pop("width"))
    return Serving(**values), size, width


def _place(entry: Entry, files: Mapping[str, bytes], certificate: Mapping[str, Any]) -> Path:
    """Writes the files into a folder beside their place, then renames it to the next version."""
    staged = Path(tempfile.mkdtemp(prefix=".publishing-", dir=entry.folder))
    try:
        number = max(map(int, versions(entry)), default=0) + 1
        for name, content in files.items():
            (staged / name).write_bytes(content)
        document = {
            "schema": SCHEMA,
            "version": str(number),
            **certificate,
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        (staged / CERTIFICATE).write_text(json.dumps(document, indent=2) + "\n")
        staged.chmod(0o755)  # mkdtemp's folder is for its owner only, and a server may be somebody else
        folder = entry.folder / str(number)
        os.rename(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return folder


def _install_preprocessor(entry: Entry, version: str) -> None:
    """The preprocessor's program, under the number of the engine that it prepares pictures for."""
    source = OWN_REPOSITORY / IMAGING.parent
    target = entry.repository / entry.preprocessor / version
    for file in sorted(source.rglob("*.py")):
        _replace(target / file.relative_to(source), file.read_bytes())


def _prune(entry: Entry) -> None:
    configurations = [entry.folder / "config.pbtxt", *entry.folder.glob("configs/*.pbtxt")]
    in_use = {served(entry, "" if path.name == "config.pbtxt" else path.stem) for path in configurations}
    for number in versions(entry)[:-VERSIONS_KEPT]:
        if number not in in_use:
            for model in (entry.model, entry.preprocessor, entry.network):
                if entry.repository / model / number != OWN_REPOSITORY / IMAGING.parent:
                    shutil.rmtree(entry.repository / model / number, ignore_errors=True)


def _replace(path: Path, content: bytes) -> None:
    """Gives a file this content in one step, if it has another."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        staged.write_bytes(content)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _unwritable(folder: Path, error: OSError) -> PublishError:
    return PublishError(
        f"The model cannot be written into {folder} ({error.strerror}): "
        "check the folder's permissions and the space on the disk."
    )
