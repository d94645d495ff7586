"""Checkpoint files as torch.save writes them, put together by hand, so that they can also be wrong."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LEGACY_HEAD = b"".join(
    pickle.dumps(value, 2)
    for value in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})
)


@dataclass(frozen=True)
class Tensor:
    """A tensor's description in a checkpoint; by default a vector of three FP32 numbers in storage "0"."""

    storage: str = "FloatStorage"
    key: str = "0"
    elements: int = 3
    offset: int = 0
    size: Sequence[int] = (3,)
    stride: Sequence[int] = (1,)

    def code(self) -> bytes:
        """The opcodes that make it."""
        return b"".join(
            (
                b"ctorch._utils\n_rebuild_tensor_v2\n((",
                code("storage"),
                f"ctorch\n{self.storage}\n".encode(),
                *map(code, (self.key, "cpu", self.elements)),
                b"tQ",
                *map(code, (self.offset, tuple(self.size), tuple(self.stride))),
                b"\x89ccollections\nOrderedDict\n)RtR",
            )
        )


@dataclass(frozen=True)
class File:
    """A checkpoint: tensors by name, raw storages by key, and opcodes to put in before the end."""

    tensors: Mapping[str, Tensor] = field(default_factory=lambda: {"x": Tensor()})
    storages: Mapping[str, bytes] = field(default_factory=lambda: {"0": struct.pack("<3f", 1, 2, 3)})
    extra: bytes = b""

    def program(self) -> bytes:
        """The pickle of the state dict."""
        items = b"".join(code(name) + tensor.code() for name, tensor in self.tensors.items())
        return b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u" + self.extra + b"."

    def legacy(self) -> bytes:
        """The file in the format before PyTorch 1.6."""
        elements = {tensor.key: tensor.elements for tensor in self.tensors.values()}
        raw = b"".join(struct.pack("<q", elements[key]) + content for key, content in self.storages.items())
        return LEGACY_HEAD + self.program() + pickle.dumps(list(self.storages), 2) + raw

    def zip(self, compression: int = zipfile.ZIP_STORED, byteorder: bytes = b"little") -> bytes:
        """The file in the format since PyTorch 1.6."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", compression) as archive:
            archive.writestr("model/data.pkl", self.program())
            archive.writestr("model/byteorder", byteorder)
            for key, content in self.storages.items():
                archive.writestr(f"model/data/{key}", content)
        return stream.getvalue()


def code(value: object) -> bytes:
    """The opcodes that make a plain value."""
    return pickletools.optimize(pickle.dumps(value, 2))[2:-1]
