"""Results of a build's slow steps, kept so that a build which was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build_engines.errors import PublishError


class Stages:
    """A folder of finished results, each under the hash of what it was made from.

    `say` gets a line when a step starts; nothing is said of a step whose result is there.
    """

    def __init__(self, folder: Path, say: Callable[[str], object] = print) -> None:
        self.folder = folder
        self.say = say

    def result(self, name: str, key: Any, words: str, make: Callable[[], bytes]) -> bytes:
        """The result `name` for `key` (a JSON value or bytes), made now if it is not there. Written whole or not."""
        content = key if isinstance(key, bytes) else json.dumps(key, sort_keys=True).encode()
        path = self.folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            if path.is_file():
                return path.read_bytes()
            self.say(words)
            made = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            staged = path.with_name(f".{path.name}-{os.getpid()}")
            staged.write_bytes(made)
            staged.replace(path)
        except OSError as error:
            raise PublishError(
                f"{path} cannot be written ({error.strerror}): name another folder with --work."
            ) from error
        return made
