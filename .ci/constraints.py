"""Writes constraints.txt: `python .ci/constraints.py PYTHON310 PYTHON311 PYTHON312`, one interpreter each.

Every extra but torch is installed afresh under each interpreter; what was resolved there is pinned, with a
marker where the versions differ. No address of an index is recorded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("pip", "setuptools", "tidegate")
TORCH = "torch==2.13.0"  # only for `make test-torch`; gigabytes, so it is not resolved here


def resolve(python: str, folder: str) -> tuple[str, dict[str, str]]:
    """(minor version, name → version) of a fresh installation under `python`."""
    venv = Path(folder) / "venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    pip = str(venv / "bin" / "pip")
    subprocess.run([pip, "install", "--quiet", f"{ROOT}[local,build,dev]"], check=True)
    frozen = subprocess.run([pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    minor = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    pins = dict(line.lower().replace("_", "-").split("==") for line in frozen.splitlines() if "==" in line)
    return minor, {name: version for name, version in pins.items() if name not in LEFT_OUT}


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
    (ROOT / "constraints.txt").write_text("\n".join([*lines, TORCH]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
