"""The probe classifier: its twelve outputs are the mean R, G, B of a picture's quadrants, so every answer is known."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.servers import ROOT


def write_probe_repository(repository: Path) -> Path:
    """The shipped preprocessor in front of the probe classifier, as the ensemble `probe_ensemble`."""
    shutil.copytree(ROOT / "tests" / "triton" / "models", repository, dirs_exist_ok=True)
    shipped = ROOT / "model_repository" / "preprocessor"
    shutil.copytree(shipped, repository / "probe_preprocessor", ignore=shutil.ignore_patterns("configs"))
    config = (shipped / "config.pbtxt").read_text()
    config = config.replace('name: "preprocessor"', 'name: "probe_preprocessor"')
    config = config.replace("classifier/preprocess.json", "probe/preprocess.json").replace("224", "64")
    shipped_recipe, recipe = (
        hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (shipped.parent / "classifier" / "preprocess.json", repository / "probe" / "preprocess.json")
    )
    config = config.replace(shipped_recipe, recipe)
    (repository / "probe_preprocessor" / "config.pbtxt").write_text(config)
    return repository
