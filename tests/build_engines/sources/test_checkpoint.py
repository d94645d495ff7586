from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_engines.errors import CheckpointError
from build_engines.sources.checkpoint import read_checkpoint
from tests.build_engines.sources.torch_files import LEGACY_HEAD, File, Tensor, code

both_formats = pytest.mark.parametrize("write", [File.legacy, File.zip])
Write = Callable[[File], bytes]


@both_formats
def test_tensors_come_by_name_with_their_values(write: Write) -> None:
    """A state dict becomes arrays of the saved shape, dtype and content."""
    tensors = read_checkpoint(write(File()))
    assert list(tensors) == ["x"]
    assert tensors["x"].dtype == np.float32
    assert tensors["x"].tolist() == [1, 2, 3]


@both_formats
def test_strides_and_offsets_are_kept(write: Write) -> None:
    """A transposed part of a shared storage comes out as what it was."""
    storages = {"0": struct.pack("<7f", *range(7))}
    tensors = {
        "whole": Tensor(elements=7, size=(7,)),
        "part": Tensor(elements=7, offset=1, size=(2, 3), stride=(1, 2)),
    }
    found = read_checkpoint(write(File(tensors, storages)))
    assert found["part"].tolist() == [[1, 3, 5], [2, 4, 6]]


@both_formats
@pytest.mark.parametrize(
    ("storage", "raw", "value", "dtype"),
    [
        ("DoubleStorage", struct.pack("<d", 0.5), 0.5, np.float64),
        ("HalfStorage", struct.pack("<e", 0.5), 0.5, np.float16),
        ("BFloat16Storage", struct.pack("<f", -1.5)[2:], -1.5, np.float32),
        ("LongStorage", struct.pack("<q", -7), -7, np.int64),
        ("IntStorage", struct.pack("<i", -7), -7, np.int32),
        ("ShortStorage", struct.pack("<h", -7), -7, np.int16),
        ("CharStorage", struct.pack("<b", -7), -7, np.int8),
        ("ByteStorage", b"\xff", 255, np.uint8),
        ("BoolStorage", b"\x01", True, np.bool_),
    ],
)
def test_every_dtype_is_read(write: Write, storage: str, raw: bytes, value: object, dtype: type) -> None:
    """Each storage class has its dtype; bfloat16 comes as float32, and a scalar has no dimensions."""
    tensor = Tensor(storage=storage, elements=1, size=(), stride=())
    found = read_checkpoint(write(File({"x": tensor}, {"0": raw})))["x"]
    assert (found.shape, found.dtype, found.item()) == ((), np.dtype(dtype), value)


def test_arrays_cannot_be_written_to() -> None:
    """The arrays are views of the file, and nobody can change it through them."""
    with pytest.raises(ValueError, match="read-only"):
        read_checkpoint(File().legacy())["x"][0] = 5


def test_a_parameter_is_its_tensor() -> None:
    """torch.nn.Parameter is only a wrapper."""
    parameter = b"ctorch._utils\n_rebuild_parameter\n(" + Tensor().code() + b"\x88ccollections\nOrderedDict\n)RtR"
    data = File(extra=code("p") + parameter + b"s").legacy()
    assert read_checkpoint(data)["p"].tolist() == [1, 2, 3]


def test_attributes_of_the_state_dict_are_dropped() -> None:
    """The versions that torch notes beside a state dict (`_metadata`) do no harm, whatever they are called."""
    data = File(extra=code({"_metadata": {}, "items": 5}) + b"b").legacy()
    assert list(read_checkpoint(data)) == ["x"]


class _Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch owned",)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("place", ["first", "state"])
def test_a_payload_is_refused_and_not_run(
    protocol: int, place: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that would run a command is refused by the command's name, wherever in the file it stands."""
    monkeypatch.chdir(str(tmp_path))
    payload = pickle.dumps(OrderedDict(x=_Payload()), protocol)
    with pytest.raises(CheckpointError, match=r"asks for '(posix|nt)\.system'.*refused"):
        read_checkpoint(payload if place == "first" else LEGACY_HEAD + payload)
    assert not os.path.exists("owned")


@both_formats
@pytest.mark.parametrize(
    "name", ["builtins\neval", "torch\nload", "torch\nUntypedStorage", "torch._utils\n_rebuild_tensor_v3", "os\nsystem"]
)
def test_other_names_are_refused(write: Write, name: str) -> None:
    """Only what a state dict needs is known; any other name is refused, even if it is never called."""
    with pytest.raises(CheckpointError, match="refused"):
        read_checkpoint(write(File(extra=f"c{name}\n0".encode())))


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(b"ctorch._utils\n_rebuild_tensor_v2\n" + code({"function": 1}) + b"b0", id="function"),
        pytest.param(b"ctorch\nFloatStorage\n" + code((None, {"dtype": "<f8"})) + b"b0", id="storage type"),
        pytest.param(b"ccollections\nOrderedDict\n" + code((None, {"keys": 1})) + b"b0", id="class"),
        pytest.param(Tensor().code() + code((None, {"offset": 9})) + b"b0", id="tensor"),
    ],
)
def test_a_checkpoint_cannot_change_the_reader(extra: bytes) -> None:
    """Opcodes that set attributes on the stand-ins fail, and the next file is read as ever."""
    with pytest.raises(CheckpointError):
        read_checkpoint(File(extra=extra).legacy())
    assert read_checkpoint(File().legacy())["x"].tolist() == [1, 2, 3]


@both_formats
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"offset": 1}, id="offset"),
        pytest.param({"size": (4,)}, id="size"),
        pytest.param({"stride": (2,)}, id="stride"),
        pytest.param({"size": (2, 2), "stride": (2, 1)}, id="product"),
        pytest.param({"size": (2**30, 2**30), "stride": (0, 0)}, id="expanded"),
        pytest.param({"size": (2**70,), "stride": (0,)}, id="giant"),
        pytest.param({"offset": -1}, id="negative offset"),
        pytest.param({"size": (-3,)}, id="negative size"),
        pytest.param({"stride": (-1,)}, id="negative stride"),
        pytest.param({"size": (3, 1)}, id="more sizes than strides"),
        pytest.param({"size": (1,) * 40, "stride": (1,) * 40}, id="many dimensions"),
        pytest.param({"size": (0, 2**31 - 1, 2**31 - 1, 2**31 - 1), "stride": (1,) * 4}, id="giant and empty"),
    ],
)
def test_nothing_outside_a_storage_is_read(write: Write, wrong: dict[str, object]) -> None:
    """A tensor that reaches outside its storage, or would need much more memory, is refused."""
    tensor = replace(Tensor(), **wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(CheckpointError):
        read_checkpoint(write(File({"x": tensor})))


def test_an_empty_tensor_is_read() -> None:
    """A tensor without elements needs none in its storage."""
    empty = Tensor(elements=0, size=(0, 5), stride=(5, 1))
    assert read_checkpoint(File({"x": empty}, {"0": b""}).zip())["x"].shape == (0, 5)


@both_formats
def test_a_storage_must_be_whole(write: Write) -> None:
    """A storage that claims more elements than the file has is refused, however many it claims."""
    for elements in (4, 2**31 - 1):
        with pytest.raises(CheckpointError, match="cut short"):
            read_checkpoint(write(File({"x": Tensor(elements=elements, size=(1,))})))


def test_a_storage_must_be_there() -> None:
    """A tensor whose storage is not in the file is refused."""
    with pytest.raises(CheckpointError, match="lacks storage '0'"):
        read_checkpoint(File(storages={}).zip())
    with pytest.raises(CheckpointError, match="list of storages"):
        read_checkpoint(File(storages={}).legacy())


def test_a_storage_has_one_description() -> None:
    """Two tensors that disagree about their common storage are refused."""
    tensors = {"x": Tensor(), "y": Tensor(storage="LongStorage", elements=1, size=(1,))}
    with pytest.raises(CheckpointError, match="two ways"):
        read_checkpoint(File(tensors).zip())


@both_formats
def test_a_cut_file_is_refused(write: Write) -> None:
    """Wherever a file is cut, it is refused."""
    data = write(File())
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            read_checkpoint(data[:length])


@both_formats
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_read(write: Write, data: st.DataObject) -> None:
    """No changed byte makes the reader fail in another way than its own."""
    content = bytearray(write(File()))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CheckpointError):
        read_checkpoint(bytes(content))


def test_a_memo_index_cannot_take_memory() -> None:
    """A pickle that numbers its first object four billion would make the unpickler's table as long."""
    with pytest.raises(CheckpointError, match="wildly"):
        read_checkpoint(b"\x80\x02}r\xff\xff\xff\xff.")


def test_an_archive_must_be_plain() -> None:
    """A compressed archive, which could inflate to anything, is refused; so is a big-endian one."""
    with pytest.raises(CheckpointError, match="compressed"):
        read_checkpoint(File().zip(compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(CheckpointError, match="little-endian"):
        read_checkpoint(File().zip(byteorder=b"big"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "damaged or not one of PyTorch's"),
        (b"<!DOCTYPE html>", "damaged or not one of PyTorch's"),
        (pickle.dumps(5, 2) * 5, "first bytes"),
        (LEGACY_HEAD + pickle.dumps([1], 2) + pickle.dumps([], 2), "holds a list"),
        (LEGACY_HEAD + pickle.dumps({"epoch": 3}, 2) + pickle.dumps([], 2), "'epoch' is a int"),
        (LEGACY_HEAD + pickle.dumps({3: 3}, 2) + pickle.dumps([], 2), "of type int"),
        (b"\x80\x02K\x05Q.", "not a storage"),
    ],
)
def test_other_files_are_named_as_such(data: bytes, words: str) -> None:
    """What is not a state dict is refused with what was found."""
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(data)
