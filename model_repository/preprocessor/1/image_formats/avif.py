"""The size that an AVIF's coded picture has, which libavif does not compare with the one that its container announces.

Sources: ISO/IEC 14496-12 (boxes, iloc), ISO/IEC 23008-12 (ispe), AV1 bitstream specification 5.3 to 5.5.
"""

import struct
from collections.abc import Iterator

from .errors import ImageError, Status

Box = tuple[bytes, memoryview]
Size = tuple[int, int]

_SEQUENCE_HEADER, _TEMPORAL_DELIMITER = 1, 2  # types of OBU


def check_avif_size(data: bytes) -> None:
    """ImageError unless every coded picture in the file has a size that the file announces. Sequences are not judged.

    Raises struct.error, IndexError or StopIteration where the file is too broken to tell.
    """
    view = memoryview(data)
    meta = next((content for kind, content in boxes(view) if kind == b"meta"), None)
    if meta is None:
        return
    parts = dict(boxes(meta[4:]))
    properties = dict(boxes(parts[b"iprp"]))[b"ipco"]
    announced = {struct.unpack_from(">II", content, 4) for kind, content in boxes(properties) if kind == b"ispe"}
    for start, length in _extents(parts[b"iloc"]):
        size = _coded_size(view[start : start + length])
        if size is not None and size not in announced:
            raise ImageError(Status.CORRUPT, f"an AVIF whose picture is {size}, announced as {announced}")


def boxes(content: memoryview) -> Iterator[Box]:
    """(type, content) of each box, one after the other."""
    at = 0
    while at + 8 <= len(content):
        size, kind = struct.unpack_from(">I4s", content, at)
        head = 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", content, at + 8)
            head = 16
        end = at + size if size else len(content)
        yield kind, content[at + head : end]
        at = max(end, at + head)


def _extents(iloc: memoryview) -> Iterator[tuple[int, int]]:
    """Where in the file each item's data begins, and how long it is; those that are kept elsewhere are left out."""
    version, sizes, more_sizes = iloc[0], iloc[4], iloc[5]
    offset, length, base, index = sizes >> 4, sizes & 15, more_sizes >> 4, more_sizes & 15 if version else 0
    reader = _Bytes(iloc, 6)
    for _ in range(reader.number(2 if version < 2 else 4)):
        reader.number(2 if version < 2 else 4)
        method = reader.number(2) & 15 if version else 0
        reader.number(2)
        start = reader.number(base)
        for _ in range(reader.number(2)):
            reader.number(index)
            where, size = start + reader.number(offset), reader.number(length)
            if method == 0:
                yield where, size


class _Bytes:
    """Big-endian numbers of any whole number of bytes, one after the other."""

    def __init__(self, content: memoryview, at: int) -> None:
        self._content = content
        self._at = at

    def number(self, size: int) -> int:
        self._at += size
        if self._at > len(self._content):
            raise IndexError("a box that ends too early")
        return int.from_bytes(self._content[self._at - size : self._at], "big")


class _Bits:
    """Bits from the most significant on, as AV1 has them."""

    def __init__(self, content: memoryview) -> None:
        self._number = int.from_bytes(content, "big")
        self._left = 8 * len(content)

    def f(self, size: int) -> int:
        self._left -= size
        if self._left < 0:
            raise IndexError("a header that ends too early")
        return self._number >> self._left & ((1 << size) - 1)

    def uvlc(self) -> None:
        zeros = 0
        while not self.f(1):
            zeros += 1
        self.f(zeros)


def _coded_size(item: memoryview) -> Size | None:
    """The size in the sequence header with which AV1 data begins; None for data of another kind."""
    at = 0
    while at + 2 <= len(item):
        kind, extended, sized = item[at] >> 3 & 15, item[at] & 4, item[at] & 2
        if item[at] & 0x81 or not sized or kind not in (_SEQUENCE_HEADER, _TEMPORAL_DELIMITER):
            return None
        at += 2 if extended else 1
        length = shift = 0
        while True:  # leb128
            length |= (item[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if not item[at - 1] & 128:
                break
        if kind == _SEQUENCE_HEADER:
            return _sequence_size(_Bits(item[at : at + min(length, 128)]))
        at += length
    return None


def _sequence_size(bits: _Bits) -> Size:
    bits.f(4)  # profile, still picture
    if bits.f(1):  # reduced header
        bits.f(5)
    else:
        delay_bits = _timing(bits) if bits.f(1) else 0
        display_delay = bits.f(1)
        for _ in range(bits.f(5) + 1):
            bits.f(12)
            if bits.f(5) > 7:
                bits.f(1)
            if delay_bits and bits.f(1):
                bits.f(2 * delay_bits + 1)
            if display_delay and bits.f(1):
                bits.f(4)
    width_bits, height_bits = bits.f(4) + 1, bits.f(4) + 1
    return bits.f(width_bits) + 1, bits.f(height_bits) + 1


def _timing(bits: _Bits) -> int:
    """timing_info and decoder_model_info; the length of delays in bits, 0 without a decoder model."""
    bits.f(64)
    if bits.f(1):
        bits.uvlc()
    if not bits.f(1):
        return 0
    delay_bits = bits.f(5) + 1
    bits.f(32 + 5 + 5)
    return delay_bits
