"""Puts finished engines into a model repository, whole or not at all.

A network's folder (such as `model_repository/classifier`) holds numbered versions. A version is complete in
itself and never changed: the engine, the recipe and the labels that it was judged with, how it is to be served,
and its certificate. Promoting one writes the configurations of all three models. They name that version and no
other, and point at its own recipe and labels; so a version that was only staged, or half written, is never served,
and an engine never gets another's labels, wherever a promotion is interrupted.

The default embedder shares the preprocessor of the default classifier where both want the same pixels
(docs/adr/0016-sharing-and-candidates.md). A candidate is a version that is served beside the main one, as a second
set of models with names of their own. A model for texts is one folder, and goes the same way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from build_engines.configs import (
    Entry,
    Serving,
    Shared,
    Tuning,
    ensemble_config,
    network_config,
    preprocessor_config,
    steps_of,
    text_config,
    version_of,
)
from build_engines.errors import PublishError
from build_engines.preprocessing import IMAGING, OWN_REPOSITORY
from build_engines.published import (
    VARIANTS,
    Candidate,
    Version,
    beside_numbers,
    candidates,
    check_names,
    find_entries,
    find_version,
    pinned,
    read_config,
    read_tuning,
    served,
    served_ensemble,
    versions,
)
from build_engines.version_folders import (
    CERTIFICATE,
    SCHEMA,
    clear_unfinished,
    copy_version,
    numbers,
    read_certificate,
    remove_folder,
    replace_file,
    unwritable,
    write_version,
    written_alone,
)

__all__ = [
    "CERTIFICATE",
    "SCHEMA",
    "VARIANTS",
    "Candidate",
    "Version",
    "beside",
    "candidates",
    "check_names",
    "find_entries",
    "find_version",
    "leave_alone",
    "pin",
    "pinned",
    "promote",
    "read_certificate",
    "read_tuning",
    "retune",
    "rollback",
    "served",
    "served_ensemble",
    "stage",
    "versions",
]

# To go back to. The one that is served stays in any case.
VERSIONS_KEPT = 3


def stage(
    entry: Entry,
    files: Mapping[str, bytes],
    *,
    serving: Serving,
    width: int,
    certificate: Mapping[str, Any],
    size: int = 0,
    shown: Mapping[str, str] | None = None,
) -> Path:
    """Writes a new version and returns its folder; nothing is served differently yet.

    `files` hold the engine; for pictures `preprocess.json`, for a classifier `labels.txt`. `size` is the side of
    the network's input in pixels. Its `certificate.json` gets the keys `schema`, `version`, `serving` and `files`
    (name → SHA-256) besides those of `certificate`. `shown` are more parameters of the model that callers name:
    `normalised`, `moderation`.

    Raises `PublishError` when it cannot be written; what was there stays as it was.
    """
    check_names(entry)
    how = {"task": entry.task, "size": size, "width": width, "shown": dict(shown or {}), **asdict(serving)}
    try:
        entry.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(entry.folder, error) from error
    with written_alone(entry.repository):
        number = 1 + max(map(int, [*versions(entry), *_numbers_of_ensemble(entry)]), default=0)
        return write_version(entry.folder, str(number), files, {**certificate, "serving": how})


def promote(entry: Entry, version: str) -> None:
    """Makes `version` the one that is served, in the configurations of its variant.

    Every file is replaced whole, and only if it differs. A model that shares the preprocessor is taken along; if the
    version was served beside another, it is so no more. Raises `PublishError` when the version is not there or not as
    it was published.
    """
    check_names(entry)
    find_version(entry, version)
    with written_alone(entry.repository):
        _promote(entry, version)


def rollback(entry: Entry, variant: str) -> str:
    """Serves the version before the one that is served now for `variant`, and returns its number."""
    now = served(entry, variant)
    if now is None:
        raise PublishError(f"{entry.network} serves nothing{f' on {variant}' if variant else ''}: nothing to undo.")
    for number in reversed(versions(entry)):
        if int(number) < int(now) and (version := Version.of(entry, number)) and version.serving.variant == variant:
            promote(entry, number)
            return number
    raise PublishError(f"{entry.network} has no version before {now} to go back to.")


def beside(entry: Entry, version: str, *, weight: float = 0, shadow: float = 0) -> Candidate:
    """Serves `version` beside the main one, as a second set of models; again: with other shares.

    `weight` is the share of the requests for no certain version that it answers, `shadow` the share of the main
    version's requests that are repeated on it; both 0 to 1, and all weights together at most 1. Raises `PublishError`
    when the version is not whole, or is the main one, or there is none to be beside.
    """
    for name, share in (("weight", weight), ("shadow", shadow)):
        if not 0 <= share <= 1:
            raise PublishError(f"The {name} {share:g} is no share of requests: give one from 0 to 1.")
    check_names(entry)
    find_version(entry, version)
    with written_alone(entry.repository):
        found = find_version(entry, version)
        variant, candidate = found.serving.variant, entry.beside(version)
        check_names(candidate)
        if (main := served(entry, variant)) in (None, version):
            what = "is the one that is served" if main else "would be alone, because none is served"
            raise PublishError(f"Version {version} of {entry.model} {what}: promote one, and put another beside it.")
        others = [each for each in candidates(entry, variant) if each.version != version]
        if (total := weight + sum(each.weight for each in others)) > 1 + 1e-9:
            listed = ", ".join(f"{each.weight:g} of version {each.version}" for each in others) or "no other"
            raise PublishError(f"All weights together are {total:g}, more than 1, with {listed}: give a smaller one.")
        copy_version(found.folder, candidate.folder / version)
        shares = {"weight": f"{weight:g}", "shadow": f"{shadow:g}"}
        _configure(candidate, found, {"version_of": entry.model, **shares})
    return Candidate(version, variant, weight, shadow)


def leave_alone(entry: Entry) -> list[str]:
    """Serves the main version only: takes every other one away from beside it, and returns their numbers."""
    check_names(entry)
    with written_alone(entry.repository):
        taken = beside_numbers(entry)
        for number in taken:
            _take_away(entry, number)
        _prune(entry)
    return taken


def pin(entry: Entry, version: str | None) -> None:
    """Notes that a person chose `version`, so that no automatic build takes its place; None forgets it."""
    path = entry.folder / "pinned"
    try:
        if version is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, f"{version}\n".encode())
    except OSError as error:
        raise unwritable(entry.folder, error) from error


def retune(entry: Entry, variant: str, tuning: Tuning) -> None:
    """Writes `tuning` down for a configuration, and into the configurations of the version that is served."""
    now = served(entry, variant)
    if now is None:
        raise PublishError(f"{entry.network} serves nothing that could be tuned: build it first.")
    path = entry.folder / "tuning.json"
    try:
        every = json.loads(path.read_bytes()) if path.is_file() else {}
        every[variant] = {key: value for key, value in asdict(tuning).items() if value is not None}
        replace_file(path, json.dumps(every, indent=2).encode() + b"\n")
    except OSError as error:
        raise unwritable(entry.folder, error) from error
    promote(entry, now)


def _promote(entry: Entry, number: str) -> None:
    version = find_version(entry, number)
    dependent, other = entry.dependent, None
    if dependent is not None and (now := served(dependent, version.serving.variant)):
        other = Version.of(dependent, now)
    for each in (version, other):
        if each is not None:
            _tuned(each)  # what is wrong with its tuning is said before anything is written
    _configure(entry, version)
    if dependent is not None and other is not None:
        _configure(dependent, other)
        _prune(dependent)
    _take_away(entry, number)
    _prune(entry)


def _configure(entry: Entry, version: Version, more: Mapping[str, str] | None = None) -> None:
    """Writes what has Triton serve `version` under the entry's names, the model that callers name last.

    That one asks its steps for certain versions. So what a killed writer leaves is as it was, or not ready.
    """
    serving, width, shown = _tuned(version), version.width, {**version.shown, **(more or {})}
    number, public = version.number, version.public
    if entry.single:
        config = text_config(entry, serving, width=width, version=number, certificate=public, shown=shown)
        replace_file(entry.folder / serving.file, config.encode())
        return
    shared = _shared(entry, version)
    if shared is None:
        _install_preprocessor(entry, version)
    network = network_config(entry, serving, size=version.size, width=width, version=number, certificate=public)
    replace_file(entry.folder / serving.file, network.encode())
    ensemble = partial(ensemble_config, entry, serving, width=width, version=number, shared=shared, shown=shown)
    own = _number_of_ensemble(entry, version, steps_of(ensemble()))
    folder = entry.repository / entry.name
    (folder / own).mkdir(parents=True, exist_ok=True)  # empty, but Triton wants it
    replace_file(folder / serving.file, ensemble(number=own).encode())
    asked = [read_config(entry.repository, entry.name, variant) for variant in VARIANTS]
    if not any(entry.preprocessor in config for config in asked):
        remove_folder(entry.repository / entry.preprocessor, entry.folder)  # it shares another's now


def _tuned(version: Version) -> Serving:
    return version.serving.tuned(read_tuning(version.entry.folder, version.serving.variant))


def _shared(entry: Entry, version: Version) -> Shared | None:
    """The partner as it is served for the version's kind of server, if it wants the very same pixels."""
    partner = entry.partner
    now = served(partner, version.serving.variant) if partner else None
    other = Version.of(partner, now) if partner and now else None
    if partner is None or other is None or version.pixels_sha256 is None:
        return None
    if other.pixels_sha256 != version.pixels_sha256:
        return None
    return Shared(partner, _tuned(other), other.width, other.number)


def _number_of_ensemble(entry: Entry, version: Version, steps: list[tuple[str, str]]) -> str:
    """The number of the ensemble that has these steps: the version's own, unless one of them may change without it.

    Then a number that stands for no other engines, and as long as the steps stay the same it stays, too.
    """
    if entry.partner is None:
        return version.number
    now = read_config(entry.repository, entry.name, version.serving.variant)
    known = served_ensemble(entry, version.serving.variant)
    if known is not None and steps_of(now) == steps:
        return known
    used = max(map(int, _numbers_of_ensemble(entry)), default=0)
    return version.number if int(version.number) > used else str(1 + max(used, *map(int, versions(entry))))


def _numbers_of_ensemble(entry: Entry) -> list[str]:
    """The numbers that an ensemble with numbers of its own has had, ascending; an unused folder in git is none."""
    if entry.partner is None:
        return []
    folder = entry.repository / entry.name
    had = {number for number in numbers(folder) if not _in_git(folder / number)}
    return sorted(had | {number for each in VARIANTS if (number := served_ensemble(entry, each))}, key=int)


def _install_preprocessor(entry: Entry, version: Version) -> None:
    """The preprocessor's program and configuration, under the number of the engine that it prepares pictures for."""
    source = OWN_REPOSITORY / IMAGING.parent
    folder = entry.repository / entry.preprocessor
    for file in sorted(source.rglob("*.py")):
        replace_file(folder / version.number / file.relative_to(source), file.read_bytes())
    config = preprocessor_config(
        entry,
        size=version.size,
        recipe_sha256=version.recipe_sha256,
        pixels_sha256=version.pixels_sha256,
        version=version.number,
    )
    replace_file(folder / version.serving.file, config.encode())


def _take_away(entry: Entry, number: str) -> None:
    """Removes the models that serve a version beside the main one, the one that callers name first."""
    for part in reversed(entry.beside(number).parts):
        remove_folder(entry.repository / part, entry.folder)


def _prune(entry: Entry) -> None:
    """Removes old versions that nobody needs, and what killed writers left."""
    clear_unfinished(entry.folder)
    parts = entry.parts
    if entry.partner is not None:
        parts = parts[:-1]
        _remove_old([entry.repository / entry.name], _numbers_of_ensemble(entry), set())
    _remove_old([entry.repository / part for part in parts], versions(entry), set(beside_numbers(entry)))


def _remove_old(folders: list[Path], numbers: list[str], kept: set[str]) -> None:
    """Removes these versions but for the last few, those that the folders' configurations name, and `kept`."""
    named = {version_of(file.read_text()) for folder in folders for file in folder.glob("**/*.pbtxt")}
    for number in numbers[:-VERSIONS_KEPT]:
        if number not in named | kept:
            for folder in folders:
                if not _in_git(folder / number):
                    shutil.rmtree(folder / number, ignore_errors=True)


def _in_git(folder: Path) -> bool:
    """Whether a version's folder belongs to the project itself."""
    return folder == OWN_REPOSITORY / IMAGING.parent or (folder / ".gitkeep").exists()
