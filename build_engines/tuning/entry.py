"""Finding a model's entry in a repository, reading its configurations, and copying it for a trial."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines import publish
from build_engines.configs import Entry, Tuning
from build_engines.errors import TuneError
from build_engines.sources import OUTPUTS
from build_engines.tuning.settings import Setting, setting_of

# Files of this many bytes are linked into copies, smaller ones are copied.
_LINKED_FROM = 1 << 20


def find_entry(repository: Path, model: str) -> Entry:
    """The entry of `model`; `TuneError` says what is missing of it."""
    folder = repository / model
    ensemble = _parse(
        _config_file(folder, "" if (folder / "config.pbtxt").is_file() else "cpu")
    )  # it may have only one
    task = ensemble.parameters["task"].string_value if "task" in ensemble.parameters else "classify"
    if task not in OUTPUTS:
        raise TuneError(f"{model} is for the task {task}; tune knows {' and '.join(OUTPUTS)}.")
    entry = Entry(repository, model, task)
    steps = [step.model_name for step in ensemble.ensemble_scheduling.step]
    made = entry.step_names
    if steps not in made:
        raise TuneError(f"{model} is not an ensemble of {' and '.join(made[0])}, as builds make them.")
    return entry


def served_config(entry: Entry, variant: str) -> Any:
    """The network's `ModelConfig` that a server of this variant reads."""
    return _parse(_config_file(entry.folder, variant))


def _config_file(folder: Path, variant: str) -> Path:
    path = folder / "configs" / f"{variant}.pbtxt"
    return path if variant and path.is_file() else folder / "config.pbtxt"


def own_setting(entry: Entry, variant: str, scratch: Path) -> Setting:
    """What the build chose, without any tuning; `scratch` is an empty folder for a copy."""
    copy = copy_entry(entry, scratch)
    publish.retune(copy, variant, Tuning())
    return setting_of(served_config(copy, variant))


def copy_entry(entry: Entry, folder: Path) -> Entry:
    """A copy of the entry's models in `folder`, whose configurations may be changed; big files are links.

    Where it shares a preprocessor, the models that it shares come along.
    """
    partner = entry.partner
    for model in (*(partner.parts if partner else ()), *entry.parts):
        if (entry.repository / model).is_dir():
            shutil.copytree(
                entry.repository / model,
                folder / model,
                copy_function=_copy,
                ignore=shutil.ignore_patterns("__pycache__", ".*"),
            )
    return Entry(folder, entry.model, entry.task)


def _copy(source: str, destination: str) -> None:
    if os.path.getsize(source) >= _LINKED_FROM:
        os.symlink(os.path.realpath(source), destination)
    else:
        shutil.copy2(source, destination)


def _parse(path: Path) -> Any:
    try:
        return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    except OSError as error:
        raise TuneError(f"{path} cannot be read ({error.strerror}): check --repository and --model.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise TuneError(f"{path} is not a model configuration: {error}.") from error
