"""API keys: a file of names and salted hashes, made by `tidegate keys`, read again when it changes.

A key is `tg_`, a public id, `_` and a secret of 256 random bits, so a fast hash is the right one (docs/adr/0011).
The id finds the entry; an unknown one is compared with a decoy, so that it takes as long as a wrong secret.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

log = logging.getLogger(__name__)

FRESH_S = 1.0
"""Seconds for which the file is not looked at again."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_KEY = re.compile(r"tg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_HEX = r"^[0-9a-f]{64}$"


class KeysError(Exception):
    """A file of keys, or an order about it, that cannot be used: a sentence for the operator."""


class Entry(BaseModel):
    """One key as it stands in the file; `hash` is HMAC-SHA-256 of the secret under `salt`, both in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NAME)
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    salt: str = Field(pattern=_HEX)
    hash: str = Field(pattern=_HEX)
    created: AwareDatetime
    expires: AwareDatetime | None = None
    models: tuple[str, ...] | None = Field(None, min_length=1)

    def is_of(self, secret: str) -> bool:
        return hmac.compare_digest(_hash(self.salt, secret), self.hash)


class KeyList(BaseModel):
    """The whole file. Another `version` is another format, which this release does not read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1]
    keys: tuple[Entry, ...]

    @model_validator(mode="after")
    def _each_once(self) -> KeyList:
        for what in ("name", "id"):
            found = [getattr(entry, what) for entry in self.keys]
            if len(set(found)) < len(found):
                raise ValueError(f"two keys have the same {what}")
        return self


def _hash(salt: str, secret: str) -> str:
    return hmac.digest(bytes.fromhex(salt), secret.encode(), "sha256").hex()


def read_keys(file: Path) -> KeyList:
    """The keys in `file`; raises `KeysError`, which names no content of it."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise KeysError(f"{file} is not a file")
        return KeyList.model_validate_json(file.read_bytes())
    except OSError as error:
        raise KeysError(f"{file}: {error.strerror}; `tidegate keys add NAME` makes such a file") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise KeysError(f"{file} is not a file of keys: {where}: {first['msg']}") from error


class Keys:
    """The keys of `file`, looked at anew at most once a second. What cannot be read leaves the keys that were.

    Raises `KeysError` when there is nothing to begin with. `now` gives seconds since 1970, `clock` monotonic ones.
    """

    def __init__(
        self, file: Path, *, now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._now = now
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._decoy, _ = make_key("nobody")
        self._seen = _signature(file)
        self._looked_at = clock()
        self._take(read_keys(file))

    def find(self, key: str) -> Entry | None:
        """The entry of a key as a caller sent it, expired or not; None for one that is not in the file."""
        parts = _KEY.fullmatch(key)
        if parts is None:
            return None
        if self._clock() - self._looked_at >= FRESH_S:
            self._look()
        entry = self._entries.get(parts[1], self._decoy)
        return entry if entry.is_of(parts[2]) and entry is not self._decoy else None

    def has_expired(self, entry: Entry) -> bool:
        return entry.expires is not None and entry.expires.timestamp() <= self._now()

    def _look(self) -> None:
        self._looked_at = self._clock()
        seen = _signature(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._take(read_keys(self._file))
        except KeysError as error:  # once for each state of the file
            log.error("The API keys cannot be read; those from before go on", extra={"reason": str(error)})

    def _take(self, found: KeyList) -> None:
        self._entries = {entry.id: entry for entry in found.keys}
        log.info("API keys were read", extra={"keys": len(self._entries)})


def _signature(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def make_key(name: str, expires: datetime | None = None, models: tuple[str, ...] | None = None) -> tuple[Entry, str]:
    """A new entry, and the key itself, which is nowhere else."""
    own_id, salt, secret = secrets.token_hex(6), secrets.token_hex(32), secrets.token_urlsafe(32)
    created = datetime.now(timezone.utc).replace(microsecond=0)
    try:
        entry = Entry(
            name=name,
            id=own_id,
            salt=salt,
            hash=_hash(salt, secret),
            created=created,
            expires=expires,
            models=models,
        )
    except ValidationError as error:
        raise KeysError(
            "A key's name has 1 to 64 letters, digits, dots, dashes and underscores, and begins with one of the "
            "first two; it has an expiry with a time zone, and one model or more, if any."
        ) from error
    return entry, f"tg_{own_id}_{secret}"


def add_key(
    file: Path, name: str, expires: datetime | None = None, models: tuple[str, ...] | None = None
) -> tuple[Entry, str]:
    """Writes a new key's entry into `file`, which is made if there is none; the key itself is only returned."""
    entry, key = make_key(name, expires, models)
    with _changing(file) as kept:
        if any(other.name == name for other in kept):
            raise KeysError(f"There is a key named {name}; remove it, or take another name.")
        kept.append(entry)
    return entry, key


def remove_key(file: Path, name: str) -> Entry:
    """Takes the key's entry out of `file`, and returns it."""
    with _changing(file, must_exist=True) as kept:
        for entry in kept:
            if entry.name == name:
                kept.remove(entry)
                return entry
    raise KeysError(f"There is no key named {name}.")


@contextmanager
def _changing(file: Path, *, must_exist: bool = False) -> Iterator[list[Entry]]:
    """The file's entries, to be changed by one process at a time; a reader sees the old file or the new one."""
    file = file.resolve()  # the file itself is replaced, not a link to it
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KeysError(f"{file.parent}: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the file's own lock would go with the file
        kept = list(read_keys(file).keys) if must_exist or file.exists() else []
        before = tuple(kept)
        yield kept
        if tuple(kept) != before:
            _replace(file, KeyList(version=1, keys=tuple(kept)))
            os.fsync(folder)
    except OSError as error:
        raise KeysError(f"{file}: {error.strerror}") from error
    finally:
        os.close(folder)


def _replace(file: Path, content: KeyList) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # of mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            if file.exists():  # a mode or an owner that somebody gave it stays
                status = file.stat()
                os.fchmod(descriptor, status.st_mode & 0o777)
                with suppress(PermissionError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
            new.write(content.model_dump_json(indent=2, exclude_none=True) + "\n")
            new.flush()
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
