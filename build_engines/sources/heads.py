"""A linear classifier that somebody trained on features, put behind the backbone that gave them.

The file is numpy's `.npz`, without pickles: `weight` FP32 [classes, dim] and `bias` FP32 [classes], so that the logits
of a feature are `weight @ feature + bias`; `labels`, the classes' names [classes]; and `normalised`, whether the
features that it was trained on had length 1: true or "l2", false or "none".
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import SourceError
from build_engines.sources import Network, Source, Wish
from build_engines.sources.features import unit_length
from build_engines.sources.libraries import needing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from build_engines.preprocessing import Normalisation

LARGEST = 1 << 28
"""Bytes of a file and of what is in it: a hundred thousand classes of 768 numbers."""

LONGEST = 200
"""Characters of a label."""

KEYS = frozenset({"weight", "bias", "labels", "normalised"})


@dataclass(frozen=True)
class Head:
    """A linear classifier of features."""

    weight: npt.NDArray[np.float32] = field(repr=False)
    """[classes, dim]"""
    bias: npt.NDArray[np.float32] = field(repr=False)
    """[classes]"""
    labels: tuple[str, ...]
    normalised: bool
    """Whether it takes features of length 1."""
    sha256: str
    """Of the file, in hexadecimal."""


def of(wish: Wish) -> Head:
    """The head that a wish names; `SourceError` when the rest of the wish contradicts it, or the file is none."""
    assert wish.head is not None
    if wish.task == "embed":
        raise SourceError("A head makes a classifier of features: leave --task embed out, or --head.")
    if wish.classes is not None:
        raise SourceError("The head says how many classes there are: leave --classes out.")
    if wish.normalise is not None:
        raise SourceError("The head's file says whether its features have length 1: leave --normalise out.")
    return read_head(wish.head)


def read_head(path: Path) -> Head:
    """The head in a file. Nothing in it is run. Raises `SourceError` that says what is wrong with it."""
    with needing("build"):
        import numpy as np
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise SourceError(f"The head {path} cannot be read ({error.strerror}).") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if max(len(content), unpacked) > LARGEST:
            raise SourceError(f"The head {path} is larger than {LARGEST >> 20} MiB.")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            arrays = {key: found[key] for key in found.files if key in KEYS}
            strange = set(found.files) - KEYS
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise TypeError("a member that is no array")  # numpy gives what has not its format as bytes
    except SourceError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything, from zlib.error to EOFError
        raise SourceError(
            f"{path} is not a head, or is damaged ({type(error).__name__}): save it with numpy.savez(file, weight=…, "
            "bias=…, labels=…, normalised=…), without objects."
        ) from error
    if strange or KEYS - arrays.keys():
        raise SourceError(
            f"The head {path} must hold weight, bias, labels and normalised: "
            + " and ".join(
                f"{words} {', '.join(sorted(map(repr, names)))}"
                for words, names in (("it lacks", KEYS - arrays.keys()), ("it has", strange))
                if names
            )
            + "."
        )
    try:
        return _checked(arrays, hashlib.sha256(content).hexdigest())
    except ValueError as error:
        raise SourceError(f"The head {path} cannot be used: {error}.") from error


def _checked(arrays: Mapping[str, npt.NDArray[Any]], sha256: str) -> Head:
    import numpy as np

    weight, bias, labels, normalised = (arrays[key] for key in ("weight", "bias", "labels", "normalised"))
    if weight.dtype.kind != "f" or weight.ndim != 2 or not weight.shape[1]:
        raise ValueError(f"weight is {weight.dtype} {list(weight.shape)}, and must be FP32 [classes, dim]")
    classes = len(weight)
    if classes < 2:
        raise ValueError(
            f"weight has {classes} row, and a classifier has at least 2 classes; where one row says yes or no, give "
            "two: zeros for no, and that row for yes, and the biases in the same way"
        )
    if bias.dtype.kind != "f" or bias.shape != (classes,):
        raise ValueError(f"bias is {bias.dtype} {list(bias.shape)}, and must be FP32 [{classes}]")
    if labels.dtype.kind != "U" or labels.shape != (classes,):
        raise ValueError(f"labels are {labels.dtype} {list(labels.shape)}, and must be {classes} texts")
    names = tuple(map(str, labels))
    for name in names:
        if not name.strip() or not name.isprintable() or len(name) > LONGEST:
            raise ValueError(f"the label {name!r:.80} is empty, too long, or more than a line of printable text")
        if name != name.strip():
            raise ValueError(f"the label {name!r:.80} begins or ends with a space: take that away")
    if len(set(names)) < classes:
        raise ValueError("two classes have the same label")
    with np.errstate(over="ignore"):  # what FP32 cannot hold is found below
        weight, bias = (np.ascontiguousarray(array, np.float32) for array in (weight, bias))
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError("weight or bias hold values that are not finite")
    said = normalised.item() if normalised.shape == () else None
    if said not in (True, False, "l2", "none"):
        raise ValueError('normalised must be true or "l2", or false or "none"')
    return Head(weight, bias, names, said in (True, "l2"), sha256)


@dataclass(frozen=True)
class Headed:
    """A backbone with a head: a source of a classifier."""

    source: Source
    """Of features of whatever length the network gives."""
    path: Path
    head: Head

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def task(self) -> str:
        return "classify"

    def identity(self) -> Mapping[str, Any]:
        """The backbone's, and the hash of the head."""
        head = {
            "file": self.path.name,
            "sha256": self.head.sha256,
            "classes": len(self.head.labels),
            "normalised": "l2" if self.head.normalised else "none",
        }
        return {**self.source.identity(), "task": self.task, "head": head}

    def preprocess(self) -> Mapping[str, Any] | None:
        return self.source.preprocess()

    def load(self, normalisation: Normalisation) -> Network:
        features = self.source.load(normalisation)
        classes, dim = self.head.weight.shape
        if dim != features.width:
            raise SourceError(
                f"The head {self.path} is for features of {dim} numbers, and {self.name} gives {features.width}: "
                "name the network, the size and the pooling that it was trained with."
            )
        if self.head.normalised:
            features = unit_length(features)
        from build_engines.onnx_graph import with_head
        from build_engines.sources.outputs import softmax

        module = features.module
        if module is not None:
            from build_engines.export import Headed as Module

            module = Module(module, self.head.weight, self.head.bias)

        def reference(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            return softmax(features.reference(pixels) @ self.head.weight.T + self.head.bias)

        graph = with_head(features.graph, self.head.weight, self.head.bias)
        return replace(
            features,
            task=self.task,
            graph=graph,
            reference=reference,
            width=classes,
            labels=self.head.labels,
            module=module,
            shown={},
        )
