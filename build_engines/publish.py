"""Puts a finished model into a model repository, whole or not at all.

An entry is a folder such as `model_repository/classifier`. It holds numbered versions, of which Triton serves
the highest, and one `certificate.json` that says what the highest was made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.errors import PublishError

SCHEMA = 1

# The one before stays, because a running server may still have to read it.
VERSIONS_KEPT = 2


def publish(entry: Path, files: Mapping[str, bytes], certificate: Mapping[str, Any]) -> Path:
    """Makes a new version of `entry` out of `files` (name → content) and returns its folder.

    The folder is filled beside its place and renamed into it. Then `certificate.json` is replaced in the same
    way; it gets the keys `schema`, `version` and `files` (name → SHA-256) besides those of `certificate`.

    Raises `PublishError` when the files cannot be written; a version that was there stays as it was.
    """
    try:
        folder = _place(entry, files)
        document = {
            "schema": SCHEMA,
            "version": folder.name,
            **certificate,
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        staged = entry / f".certificate-{os.getpid()}.json"
        staged.write_text(json.dumps(document, indent=2) + "\n")
        staged.replace(entry / "certificate.json")
        for version in _versions(entry)[:-VERSIONS_KEPT]:
            shutil.rmtree(entry / str(version), ignore_errors=True)
    except OSError as error:
        raise PublishError(
            f"The model cannot be written into {entry} ({error.strerror}): "
            "check the folder's permissions and the space on the disk."
        ) from error
    return folder


def published(entry: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The newest version's folder and its certificate; None unless both are there, whole and unchanged."""
    try:
        certificate = json.loads((entry / "certificate.json").read_bytes())
        folder = entry / str(_versions(entry)[-1])
        for name, sha256 in certificate["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sha256:
                return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return (folder, certificate) if certificate.get("version") == folder.name else None


def _place(entry: Path, files: Mapping[str, bytes]) -> Path:
    """Writes the files into a folder beside their place, then renames it to the next version."""
    staged = Path(tempfile.mkdtemp(prefix=".publishing-", dir=entry))
    try:
        for name, content in files.items():
            (staged / name).write_bytes(content)
        staged.chmod(0o755)  # mkdtemp's folder is for its owner only, and a server may be somebody else
        folder = entry / str(max(_versions(entry), default=0) + 1)
        os.rename(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return folder


def _versions(entry: Path) -> list[int]:
    """The numbers of the versions that are there, ascending."""
    return sorted(int(path.name) for path in entry.iterdir() if path.is_dir() and path.name.isdecimal())
