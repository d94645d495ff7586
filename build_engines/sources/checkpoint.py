"""PyTorch checkpoints → numpy arrays, without torch and without running the file.

A checkpoint is a pickle, and a pickle is a program. This reader lets it do only what a state dict needs:
first every opcode is checked against a list, then `pickle.Unpickler` runs it with a `find_class` that knows
a few names, all of which lead to stand-ins below. Both formats of `torch.save` are read: the zip archive
(since PyTorch 1.6), and before it plain pickles followed by raw storages (`torch/serialization.py`).

The arrays are read-only views of the storages in the file, each checked against its storage's end, so a file
can neither show memory that is not its own nor ask for much more than its own size.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from build_engines.errors import CheckpointError

# The first number of a file in the older format, and its version (torch/serialization.py).
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001

# All that torch.save writes for a state dict, in any pickle protocol; not NEWOBJ, INST, EXT and the rest.
# fmt: off
_OPCODES = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND",
    "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
    "BINPERSID",
))
# fmt: on

# Number of dimensions that numpy 1 can hold; torch allows 64, no network comes near.
_MAX_DIMENSIONS = 32


def read_checkpoint(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a state dict, by name.

    Takes the content of a `.pth` file. The arrays are read-only, have the shapes and strides of the saved
    tensors (not always contiguous or aligned) and their dtypes, but for bfloat16, which comes as float32.

    Raises `CheckpointError` for a file that is damaged, is not a state dict, or would build anything else.
    """
    if sys.byteorder != "little":
        raise CheckpointError("Checkpoints are little-endian, and this machine is not.")
    state, storages = _read_zip(data) if data.startswith(b"PK\x03\x04") else _read_legacy(data)
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint holds a {type(state).__name__}, not a state dict.")
    tensors = {}
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _Tensor):
            raise CheckpointError(f"The entry {_short(name)} is a {type(value).__name__}, not a tensor under a name.")
        tensors[name] = _view(name, value, storages[value.storage.key])
    return tensors


# What the pickle may make. Named tuples, because the BUILD opcode can change whatever has a `__dict__`, a
# `__setstate__` (a frozen dataclass with slots gets one) or attributes that can be set (functions, classes).


class _StorageType(NamedTuple):
    """Stands for torch.FloatStorage and its siblings."""

    dtype: str


class _Storage(NamedTuple):
    """A storage by its key in the file; its bytes are found later."""

    key: str
    type: _StorageType
    elements: int


class _Tensor(NamedTuple):
    """A tensor as the file describes it: still unchecked."""

    storage: _Storage
    offset: object
    size: object
    stride: object


class _Callable(NamedTuple):
    """Stands for a function of torch."""

    function: Callable[..., object]

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments)


class _Mapping(dict[object, object]):
    """Stands for OrderedDict. Drops the attributes it is given (`_metadata`: versions of torch's modules)."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


def _rebuild_tensor(storage: object, offset: object, size: object, stride: object, *_autograd: object) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise CheckpointError("The checkpoint has a tensor without a storage: refused.")
    return _Tensor(storage, offset, size, stride)


def _rebuild_parameter(tensor: object, *_autograd: object) -> object:
    return tensor


_STORAGE_TYPES = {
    "DoubleStorage": _StorageType("<f8"),
    "FloatStorage": _StorageType("<f4"),
    "HalfStorage": _StorageType("<f2"),
    "BFloat16Storage": _StorageType("bfloat16"),
    "LongStorage": _StorageType("<i8"),
    "IntStorage": _StorageType("<i4"),
    "ShortStorage": _StorageType("<i2"),
    "CharStorage": _StorageType("i1"),
    "ByteStorage": _StorageType("u1"),
    "BoolStorage": _StorageType("?"),
}

_GLOBALS: Mapping[tuple[str, str], object] = {
    ("collections", "OrderedDict"): _Mapping,
    ("torch._utils", "_rebuild_tensor_v2"): _Callable(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Callable(_rebuild_parameter),
    **{("torch", name): kind for name, kind in _STORAGE_TYPES.items()},
    **{("torch.cuda", name): kind for name, kind in _STORAGE_TYPES.items()},
}


class _Unpickler(pickle.Unpickler):
    """Runs a checked pickle; remembers the storages it names."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> object:
        """The stand-in for `module.name`; `CheckpointError` for a name that a state dict does not need."""
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise CheckpointError(
                f"The checkpoint asks for {_short(f'{module}.{name}')}, which a state dict does not need: refused."
            ) from None

    def persistent_load(self, pid: object) -> _Storage:
        """The storage that a persistent id ("storage", type, key, device, elements) names."""
        match pid:
            case ("storage", _StorageType() as kind, str(key), str(), int(elements), *view) if elements >= 0:
                if view not in ([], [None]):
                    raise CheckpointError("The checkpoint has storages within storages: not supported.")
                storage = _Storage(key, kind, elements)
                if self.storages.setdefault(key, storage) != storage:
                    raise CheckpointError(f"The checkpoint describes storage {_short(key)} in two ways.")
                return storage
        raise CheckpointError("The checkpoint refers to something that is not a storage: refused.")


def _unpickle(data: bytes, start: int = 0) -> tuple[Any, int, dict[str, _Storage]]:
    """The object pickled at `start`, the position behind it, and the storages it names."""
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if opcode.name not in _OPCODES:
                raise CheckpointError(f"The checkpoint uses the pickle opcode {opcode.name}: refused.")
            # The memo is an array in C: one large index would make it gigabytes long.
            if opcode.name == "LONG_BINPUT" and argument and argument > count:
                raise CheckpointError("The checkpoint's pickle numbers its objects wildly: refused.")
        end = stream.tell()
        unpickler = _Unpickler(data[start:end])
        return unpickler.load(), end, unpickler.storages
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise CheckpointError(
            f"The checkpoint cannot be read, it is damaged or not one of PyTorch's ({type(error).__name__})."
        ) from error


def _read_legacy(data: bytes) -> tuple[object, dict[str, npt.NDArray[Any]]]:
    """State and storages of a file in the format before PyTorch 1.6: five pickles, then the storages."""
    magic, position, _ = _unpickle(data)
    version, position, _ = _unpickle(data, position)
    system, position, _ = _unpickle(data, position)
    if magic != _LEGACY_MAGIC or version != _LEGACY_VERSION:
        raise CheckpointError("The file is not a PyTorch checkpoint: its first bytes are not those of one.")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError("The checkpoint is not little-endian: not supported.")
    state, position, named = _unpickle(data, position)
    keys, position, _ = _unpickle(data, position)
    if not isinstance(keys, list) or sorted(named) != sorted(map(str, keys)):
        raise CheckpointError("The checkpoint's list of storages does not match its tensors.")
    storages = {}
    for key in keys:
        elements = int.from_bytes(data[position : position + 8], "little")
        if elements != named[key].elements:
            raise CheckpointError(f"The checkpoint is cut short or damaged at storage {_short(key)}.")
        storages[key], position = _elements(data, position + 8, named[key])
    return state, storages


def _read_zip(data: bytes) -> tuple[object, dict[str, npt.NDArray[Any]]]:
    """State and storages of a file in the format since PyTorch 1.6: an uncompressed zip archive."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = {member.filename: member for member in archive.infolist()}
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise CheckpointError("The checkpoint's archive is compressed, as torch.save never does: refused.")
        if sum(member.file_size for member in members.values()) > len(data):
            raise CheckpointError("The checkpoint's archive claims to hold more than the file: refused.")
        tops = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
        if len(tops) != 1:
            raise CheckpointError("The archive is not a PyTorch checkpoint: it has no single data.pkl.")
        (top,) = tops
        if f"{top}byteorder" in members and archive.read(f"{top}byteorder") != b"little":
            raise CheckpointError("The checkpoint is not little-endian: not supported.")
        state, _, named = _unpickle(archive.read(f"{top}data.pkl"))
        storages = {}
        for key, storage in named.items():
            if f"{top}data/{key}" not in members:
                raise CheckpointError(f"The checkpoint lacks storage {_short(key)}.")
            storages[key], _ = _elements(archive.read(f"{top}data/{key}"), 0, storage)
        return state, storages
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise CheckpointError(f"The checkpoint's archive is damaged ({error}).") from error


def _elements(data: bytes, start: int, storage: _Storage) -> tuple[npt.NDArray[Any], int]:
    """A storage's elements as a flat array over `data`, and the position behind them."""
    half = storage.type.dtype == "bfloat16"
    dtype = np.dtype("<u2" if half else storage.type.dtype)
    end = start + storage.elements * dtype.itemsize
    if end > len(data):
        raise CheckpointError(f"The checkpoint is cut short: storage {_short(storage.key)} is incomplete.")
    elements = np.frombuffer(data, dtype, storage.elements, start)
    if half:  # bfloat16 is the upper half of a float32
        elements = (elements.astype("<u4") << 16).view("<f4")
        elements.flags.writeable = False
    return elements, end


def _view(name: str, tensor: _Tensor, storage: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The tensor as an array over its storage, after its numbers were checked."""
    size, stride, (offset,) = map(_sizes, (tensor.size, tensor.stride, (tensor.offset,)))
    if len(size) != len(stride) or len(size) > _MAX_DIMENSIONS:
        raise CheckpointError(f"Tensor {_short(name)} has {len(size)} sizes, {len(stride)} strides: refused.")
    elements = math.prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    # More elements than the storage: torch writes such (`expand`), but a few bytes would become gigabytes.
    if elements > len(storage) or (elements > 0 and last >= len(storage)):
        raise CheckpointError(f"Tensor {_short(name)} reaches outside its storage of {len(storage)} elements: refused.")
    if elements == 0:
        if math.prod(length or 1 for length in size) >= 2**31:
            raise CheckpointError(f"Tensor {_short(name)} is empty and of an impossible shape: refused.")
        return np.empty(size, storage.dtype)
    strides = [step * storage.itemsize for step in stride]
    return np.ndarray(size, storage.dtype, storage, offset * storage.itemsize, strides)


def _sizes(values: object) -> tuple[int, ...]:
    """Sizes, strides or offsets that numpy can hold."""
    if isinstance(values, tuple) and all(type(value) is int and 0 <= value < 2**31 for value in values):
        return values
    raise CheckpointError("The checkpoint has a tensor with an impossible size, stride or offset: refused.")


def _short(value: object) -> str:
    """A name from the file for a message: quoted, printable, not long."""
    text = value if isinstance(value, str) else f"of type {type(value).__name__}"
    return repr(text[:80])
