"""Runs `model.onnx` in onnxruntime on the words that `words.py` finds in texts; refuses what is not as certified.

Only what changes answers is refused: a file of this version that is not the published one, a Python whose Unicode
tables would find other words, an onnxruntime that computes other numbers for the texts of `check.json`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

TEXTS_AT_ONCE = 32  # each takes a row as wide as the vocabulary
TOLERANCE = 1e-4
"""Largest difference of an output from the one that was certified."""

TOO_LONG = -1.0
"""In place of a share of known words."""

Rows = npt.NDArray[np.float32]


class UnfitError(RuntimeError):
    """This installation cannot serve this version; the message says why and what helps."""


class Engine:
    """A text model: texts → FP32 [n, width] and the share of each text's words that it knows, FP32 [n, 1].

    The share is `TOO_LONG` for a text that is longer than what is read of one: its row is that of a text without words.
    """

    def __init__(self, folder: Path) -> None:
        self._read_words = _load_words(folder / "words.py")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # other texts are what the other cores are for
        options.log_severity_level = 4  # what goes wrong is raised, too
        path = str(folder / "model.onnx")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (rows,) = self._session.get_outputs()
        self.output = str(rows.name)
        self.width = int(rows.shape[1])
        self._vocabulary = frozenset((folder / "vocabulary.txt").read_text("utf-8").split("\n"))

    def __call__(self, texts: Sequence[bytes | str]) -> tuple[Rows, Rows]:
        """Both outputs for any number of texts, in order; bytes are UTF-8. Never fails because of a text."""
        found = [words if whole else None for words, whole in map(self._read_words, texts)]
        if len(found) == 1:
            return self._run(found)
        rows, shares = np.empty((len(found), self.width), np.float32), np.empty((len(found), 1), np.float32)
        for start in range(0, len(found), TEXTS_AT_ONCE):
            part = slice(start, start + TEXTS_AT_ONCE)
            rows[part], shares[part] = self._run(found[part])
        return rows, shares

    def _run(self, found: list[list[str] | None]) -> tuple[Rows, Rows]:
        """`None` stands for a text that is too long."""
        read = [words or [] for words in found]
        longest = max([1, *map(len, read)])
        # The empty string is no word, and so in no vocabulary.
        padded = [words + [""] * (longest - len(words)) for words in read]
        rows = self._session.run(None, {"WORDS": np.array(padded, object).reshape(len(read), longest)})[0]
        known = self._vocabulary
        shares = [sum([word in known for word in words]) / (len(words) or 1) for words in read]
        if self.output == "EMBEDDING":  # of which a known word alone makes no direction
            shares = [share if row.any() else 0.0 for share, row in zip(shares, rows, strict=True)]
        shares = [TOO_LONG if words is None else share for words, share in zip(found, shares, strict=True)]
        return rows, np.array(shares, np.float32).reshape(-1, 1)


def load(folder: Path) -> Engine:
    """The engine of a version's folder; raises `UnfitError` unless it is what was published, and answers as it did."""
    certificate = _read(folder / "certificate.json")
    for name, sha256 in certificate["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise UnfitError(
                f"{path} is not the file that was published: build the model again "
                "(python -m build_engines text), or serve another version (--promote)."
            )
    unicode = certificate["vectoriser"]["unicode"]
    if unicode != unicodedata.unidata_version:
        raise UnfitError(
            f"{folder} was made by a Python with Unicode {unicode}, and this one has {unicodedata.unidata_version}, "
            "which may find other words in a text: build the model again with the Python that serves it."
        )
    try:
        engine = Engine(folder)
    except Exception as error:  # onnxruntime's errors have no base of their own
        raise UnfitError(
            f"onnxruntime {onnxruntime.__version__} cannot run {folder / 'model.onnx'}: {error}"
        ) from error
    check = _read(folder / "check.json")
    rows, shares = engine(check["texts"])
    for found, expected in ((rows, check["rows"]), (shares, check["known_words"])):
        largest = np.abs(found - np.array(expected, np.float32)).max()
        if not largest <= TOLERANCE:  # NaN is not, either
            raise UnfitError(
                f"onnxruntime {onnxruntime.__version__} gives other answers ({largest:.2g} apart) than "
                f"{certificate['versions']['onnxruntime']}, with which {folder} was certified: build the model again."
            )
    return engine


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnfitError(f"{path} cannot be read ({error}): build the model again.") from error


def _load_words(path: Path) -> Any:
    """By path: the module's name could be anyone's where Triton's stub looks."""
    spec = importlib.util.spec_from_file_location("tidegate_words", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read_words
