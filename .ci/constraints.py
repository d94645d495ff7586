"""Writes constraints.txt: `python .ci/constraints.py PYTHON310 PYTHON311 PYTHON312`, one interpreter each.

Every extra is resolved afresh under each interpreter, and the result is pinned, with a marker where the versions
differ. Nothing is installed: torch alone would be gigabytes. Its version is named here, and what it needs for a
GPU is not pinned: torch does that itself. No address of an index is recorded.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("pip", "setuptools", "tidegate")
TORCH = ("torch==2.13.0", "torchvision==0.28.0")  # a pair of one release
GPU_ONLY = re.compile(r"cuda-|nvidia-(?!pytriton)|triton$")


def resolve(python: str, folder: str) -> tuple[str, dict[str, str]]:
    """(minor version, name → version) of what a fresh installation under `python` would have."""
    venv = Path(folder) / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    report = Path(folder) / "report.json"
    command = [str(venv / "bin" / "pip"), "install", "--quiet", "--dry-run", "--report", str(report)]
    subprocess.run([*command, f"{ROOT}[local,build,dev,fuzz,torch]", *TORCH], check=True)
    found = json.loads(report.read_text())
    packages = [package["metadata"] for package in found["install"]]
    pins = {package["name"].lower().replace("_", "-"): package["version"] for package in packages}
    return ".".join(found["environment"]["python_version"].split(".")[:2]), {
        name: version.partition("+")[0]  # without the build of this machine, such as +cpu
        for name, version in pins.items()
        if name not in LEFT_OUT and not GPU_ONLY.match(name)
    }


def main(pythons: list[str]) -> None:
    versions: dict[str, dict[str, str]] = defaultdict(dict)
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            minor, pins = resolve(python, folder)
        for name, version in pins.items():
            versions[name][minor] = version
    lines = []
    for name, by_minor in sorted(versions.items()):
        if len(by_minor) == len(pythons) and len(set(by_minor.values())) == 1:
            lines.append(f"{name}=={next(iter(by_minor.values()))}")
        else:
            lines += [f'{name}=={v} ; python_version == "{minor}"' for minor, v in sorted(by_minor.items())]
    (ROOT / "constraints.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
