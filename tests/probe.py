"""The probe classifier: its twelve outputs are the mean R, G, B of a picture's quadrants, so every answer is known."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from build_engines.preprocessing import Preprocessing
from gateway.triton.local import LocalTriton, Ports, free_ports
from tests.servers import ROOT

_BUILT = ("[2-9]", "[1-9][0-9]*")  # versions that the builder has made: their program may be of another day


def write_probe_repository(repository: Path) -> Path:
    """The shipped preprocessor in front of the probe classifier, as the ensemble `probe_ensemble`."""
    shutil.copytree(ROOT / "tests" / "triton" / "models", repository, dirs_exist_ok=True)
    shipped = ROOT / "model_repository" / "preprocessor"
    shutil.copytree(shipped, repository / "probe_preprocessor", ignore=shutil.ignore_patterns("configs", *_BUILT))
    config = (shipped / "config.pbtxt").read_text()
    config = config.replace('name: "preprocessor"', 'name: "probe_preprocessor"')
    config = config.replace("classifier/preprocess.json", "probe/preprocess.json").replace("224", "64")
    shipped_recipe, recipe = (
        file.read_bytes()
        for file in (shipped.parent / "classifier" / "preprocess.json", repository / "probe" / "preprocess.json")
    )
    for old, new in zip(_hashes(shipped_recipe), _hashes(recipe), strict=True):
        config = config.replace(old, new)
    (repository / "probe_preprocessor" / "config.pbtxt").write_text(config)
    return repository


def _hashes(recipe: bytes) -> tuple[str, str]:
    """Of the file, and of what it says of pixels."""
    return hashlib.sha256(recipe).hexdigest(), Preprocessing.read(recipe).pixels_sha256


@contextmanager
def probe_triton(repository: Path, *arguments: str) -> Iterator[LocalTriton]:
    """A real Triton for a test that breaks it; started again when it dies, like that of `tidegate up`."""
    with LocalTriton([repository], ports=Ports(*free_ports(3)), arguments=arguments) as triton:
        triton.wait_ready()
        yield triton


def processes(triton: LocalTriton) -> list[psutil.Process]:
    """Stubs of the Python backend and decoders under it."""
    return psutil.Process(triton.pid).children(recursive=True)


def stub_of(triton: LocalTriton, model: str) -> psutil.Process:
    """The process in which Triton runs this model."""
    (stub,) = [each for each in processes(triton) if any(f"/{model}/" in word for word in each.cmdline()[:2])]
    return stub
