"""What a model repository serves, read from its files: versions, those beside them, tuning. Changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.configs import TEXT_OUTPUTS, Entry, Serving, Tuning, parameter_of, version_of
from build_engines.errors import PublishError
from build_engines.sources import OUTPUTS
from build_engines.version_folders import CERTIFICATE, numbers, read_certificate

VARIANTS = ("", "cpu")
"""Kinds of configuration: what GPU servers read, and what CPU servers prefer."""


@dataclass(frozen=True)
class Version:
    """A whole version, as it was published."""

    entry: Entry
    number: str
    certificate: Mapping[str, Any]
    serving: Serving
    size: int
    """Side of the network's input in pixels; 0 for texts."""
    width: int
    """Classes, or dimensions of a feature."""
    shown: Mapping[str, str]
    """What the model that callers name tells of itself beside its task."""

    @classmethod
    def of(cls, entry: Entry, number: str) -> Version | None:
        """The version of this number; None unless it is whole, and of the entry's task."""
        certificate = read_certificate(entry.folder / number) if number in versions(entry) else None
        try:
            if certificate is None or certificate["serving"]["task"] != entry.task:
                return None
            values = dict(certificate["serving"])
            del values["task"]
            size, width, shown = int(values.pop("size")), int(values.pop("width")), dict(values.pop("shown"))
            return cls(entry, number, certificate, Serving(**values), size, width, shown)
        except (LookupError, TypeError, ValueError):
            return None

    @property
    def folder(self) -> Path:
        return self.entry.folder / self.number

    @property
    def public(self) -> Mapping[str, Any]:
        """The certificate as callers see it."""
        return {key: value for key, value in self.certificate.items() if key not in ("serving", "files")}

    @property
    def recipe_sha256(self) -> str:
        """Of its `preprocess.json`, in hexadecimal."""
        return str(self.certificate["files"]["preprocess.json"])

    @property
    def pixels_sha256(self) -> str | None:
        """Of what the recipe says of pixels, in hexadecimal; None where the certificate does not say it."""
        value = (self.certificate.get("preprocess") or {}).get("pixels_sha256")
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class Candidate:
    """A version that is served beside the main one."""

    version: str
    variant: str
    weight: float
    """Share of the requests for no certain version that it answers, 0 to 1."""
    shadow: float
    """Share of the main version's requests that are repeated on it, 0 to 1."""


def find_entries(repository: Path, model: str) -> list[Entry]:
    """The entries of `model` that have versions: usually one."""
    entries = [Entry(repository, model, task) for task in (*OUTPUTS, *TEXT_OUTPUTS)]
    tasks = {entry.folder: _tasks(entry) for entry in entries}
    known = [entry for entry in entries if entry.task in tasks[entry.folder]]
    # Versions of an older form, or damaged ones: the first task that they may be for.
    return known or [entry for entry in entries if "" in tasks[entry.folder]][:1]


def _tasks(entry: Entry) -> set[str]:
    """What the versions in the entry's folder are for, by their certificates; "" for one that is not whole."""
    folders = [entry.folder / number for number in versions(entry)]
    if entry.single:  # else the empty folders of an ensemble would be versions
        folders = [folder for folder in folders if (folder / CERTIFICATE).exists()]
    certificates = [read_certificate(folder) or {} for folder in folders]
    return {str(certificate.get("serving", {}).get("task", "")) for certificate in certificates}


def find_version(entry: Entry, number: str) -> Version:
    """The whole version of this number, or `PublishError` that says which there are."""
    version = Version.of(entry, number)
    if version is None:
        known = ", ".join(versions(entry)) or "none"
        raise PublishError(f"{entry.network} has no whole version {number}: there are {known}.")
    return version


def versions(entry: Entry) -> list[str]:
    """The numbers of the versions that are there, ascending."""
    return numbers(entry.folder)


def served(entry: Entry, variant: str) -> str | None:
    """The number of the version that Triton is to serve for a configuration ("cpu", or "" for GPUs)."""
    return version_of(read_config(entry.repository, entry.network, variant))


def served_ensemble(entry: Entry, variant: str) -> str | None:
    """The number that answers carry: the version's own, but for a model that shares another's preprocessor."""
    return version_of(read_config(entry.repository, entry.name, variant))


def candidates(entry: Entry, variant: str | None = None) -> list[Candidate]:
    """The versions that are served beside the main one, ascending; of all variants unless one is named."""
    found = []
    for number in beside_numbers(entry):
        for each in VARIANTS if variant is None else (variant,):
            name = entry.beside(number).name
            config = read_config(entry.repository, name, each)
            if parameter_of(config, "version_of") != entry.model:
                continue
            try:
                weight, shadow = (float(parameter_of(config, key) or 0) for key in ("weight", "shadow"))
            except ValueError as error:
                raise PublishError(f"The weight or shadow of {name} is no number ({error}): take it away.") from error
            found.append(Candidate(number, each, weight, shadow))
    return found


def beside_numbers(entry: Entry) -> list[str]:
    """The versions of which there are models beside the main one, even half a set that a killed writer left."""
    found = set()
    for part in entry.parts:
        for path in entry.repository.glob("*.v*"):
            stem, _, number = path.name.rpartition(".v")
            if stem == part and number.isdecimal() and (path / number).is_dir():
                found.add(number)
    return sorted(found, key=int)


def read_config(repository: Path, model: str, variant: str) -> str:
    """A model's configuration of just this kind; empty when there is none."""
    try:
        return config_file(repository / model, variant).read_text()
    except OSError:
        return ""


def config_file(folder: Path, variant: str) -> Path:
    """Where a model's configuration of a kind is."""
    return folder / (f"configs/{variant}.pbtxt" if variant else "config.pbtxt")


def check_names(entry: Entry) -> None:
    """`PublishError` when a folder of the entry's is already another part of this or another model."""
    if re.search(r"\.v\d+$", entry.model):
        raise PublishError(f"{entry.model} ends like a version beside another: choose another name with --model.")
    if entry.single:
        parts = {entry.name: _SINGLE}
    else:
        parts = {entry.name: "ensemble", entry.preprocessor: "preprocessor", entry.network: "network"}
    for name, part in parts.items():
        for path in sorted((entry.repository / name).glob("**/*.pbtxt")):
            text = path.read_text()
            asked = re.findall(r'^ *model_name: "(.*)"$', text, re.MULTILINE)
            taken = None
            if (found := _kind(text)) != part:
                taken = f"the {found} of a model" if found != _SINGLE else "a model of its own"
            elif asked and asked not in entry.step_names:
                taken = f"of {' and '.join(asked)}"
            elif part == _SINGLE and parameter_of(text, "task") != entry.task:
                taken = f"for the task {parameter_of(text, 'task')}"
            if taken:
                raise PublishError(f"{name} is {taken} already: choose another name with --model.")


_SINGLE = "single"


def _kind(config: str) -> str:
    """Which part of a model a configuration is of, also one that was written by hand."""
    if "ensemble_scheduling" in config:
        return "ensemble"
    if 'key: "preprocess"' in config:
        return "preprocessor"
    return _SINGLE if 'key: "task"' in config else "network"


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


def pinned(entry: Entry) -> str | None:
    """The version that a person chose."""
    path = entry.folder / "pinned"
    return path.read_text().strip() if path.is_file() else None
