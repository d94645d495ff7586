"""Folders of numbered versions, as Triton reads them, and files that are put into them whole or not at all.

Nothing here knows what a model is: a version is a number, its files, and the hashes of them in `certificate.json`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from build_engines.errors import PublishError

SCHEMA = 3

CERTIFICATE = "certificate.json"

# Of folders that are being filled or removed: Triton takes only numbers for versions.
_UNFINISHED = ".publishing-"


@contextmanager
def written_alone(repository: Path) -> Iterator[None]:
    """While nobody else writes into the repository; makes `PublishError` of an `OSError`. Does not nest."""
    try:
        folder = os.open(repository, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise unwritable(repository, error) from error


def unwritable(folder: Path, error: OSError) -> PublishError:
    """The error of a folder that cannot be written to."""
    return PublishError(
        f"The model cannot be written into {folder} ({error.strerror}): "
        "check the folder's permissions and the space on the disk."
    )


def numbers(folder: Path) -> list[str]:
    """The numbers of the versions that are there, ascending."""
    if not folder.is_dir():
        return []
    return sorted((path.name for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()), key=int)


def read_certificate(folder: Path) -> dict[str, Any] | None:
    """A version's certificate; None unless the version is whole, unchanged and of this form."""
    try:
        certificate: dict[str, Any] = json.loads((folder / CERTIFICATE).read_bytes())
        for name, sha256 in certificate["files"].items():
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sha256:
                return None
        whole = (certificate["version"], certificate["schema"]) == (folder.name, SCHEMA)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return certificate if whole else None


def write_version(folder: Path, number: str, files: Mapping[str, bytes], certificate: Mapping[str, Any]) -> Path:
    """Writes a version's files and its certificate into a folder beside their place, then renames it to `number`.

    The certificate gets the keys `schema`, `version` and `files` (name → SHA-256). Raises `OSError`; what was there
    stays as it was, and nothing is left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        for name, content in files.items():
            (staged / name).write_bytes(content)
        document = {
            "schema": SCHEMA,
            "version": number,
            **certificate,
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        (staged / CERTIFICATE).write_text(json.dumps(document, indent=2) + "\n")
        staged.chmod(0o755)  # mkdtemp's folder is for its owner only, and a server may be somebody else
        os.rename(staged, folder / number)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return folder / number


def copy_version(source: Path, target: Path) -> None:
    """The files of a whole version once more, at `target`: as links where the file system has them, else as copies."""
    certificate = json.loads((source / CERTIFICATE).read_bytes())
    if read_certificate(target) == certificate:
        return
    if target.is_dir():  # half copied, or of a version that had this number once
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name in (*certificate["files"], CERTIFICATE):
        try:
            os.link(source / name, target / name)
        except OSError:  # files of another owner, or a file system without links
            replace_file(target / name, (source / name).read_bytes())


def replace_file(path: Path, content: bytes) -> None:
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


def remove_folder(path: Path, beside: Path) -> None:
    """Removes a model's folder in one step for those who look; `beside` is a folder of another model."""
    if path.is_dir():
        beside.mkdir(parents=True, exist_ok=True)
        trash = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=beside))
        try:
            os.rename(path, trash / path.name)
        finally:
            shutil.rmtree(trash, ignore_errors=True)


def clear_unfinished(folder: Path) -> None:
    """Removes what writers left that were killed. Only while nobody else writes."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
