"""Encoded bytes → `EncodedImage` or an `ItemProblem`, from the header alone: nothing is decoded here.

Answers three questions before any byte goes to Triton: what kind of file is it (by its bytes, never by its
name), how many pixels will it have, and is all of it there. The preprocessor judges the content later.

Sources: ITU-T T.81 annex B (JPEG), W3C PNG, RFC 9649 (WebP), the GIF89a and TIFF 6.0 specifications,
BITMAPINFOHEADER (BMP), ISO/IEC 23008-12 and the AV1 image format (AVIF).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import ItemProblem


@dataclass(frozen=True)
class EncodedImage:
    """A whole file of a `kind` we take, `width` × `height` pixels as stored."""

    data: bytes
    kind: str
    width: int
    height: int


@dataclass(frozen=True)
class ImageLimits:
    """What one image may cost: bytes of its file, pixels of its raster."""

    max_file_bytes: int
    max_pixels: int


MAX_SIDE = 65_535  # of a JPEG, and of most formats; rows of a picture cost more than their pixels say


class _Cut(Exception):
    """The file ends, or contradicts itself, before its header says so."""


def inspect(data: bytes, limits: ImageLimits) -> EncodedImage | ItemProblem:
    """Kind and size of one encoded image, or the reason why it cannot be used. Never raises."""
    if not data:
        return ItemProblem("empty_image", "The file is empty.")
    if len(data) > limits.max_file_bytes:
        return ItemProblem("file_too_large", f"The file has {len(data)} bytes; the limit is {limits.max_file_bytes}.")
    kind = _kind(data)
    if kind not in _SIZES:
        return _unsupported(kind)
    try:
        width, height = _SIZES[kind](data)
    except (_Cut, struct.error, IndexError):
        return ItemProblem("corrupt_image", f"The {kind} file is cut short or damaged.")
    if width * height > limits.max_pixels or max(width, height) > MAX_SIDE:
        return ItemProblem(
            "image_too_large",
            f"The picture has {width}×{height} pixels; the limit is {limits.max_pixels} in all, {MAX_SIDE} a side.",
        )
    if width == 0 or height == 0:
        return ItemProblem("corrupt_image", f"The {kind} file says that it has no pixels.")
    return EncodedImage(data, kind, width, height)


HEAD_BYTES = 512
"""So many bytes of a file are enough to say what kind it is."""


def refused_kind(head: bytes) -> ItemProblem | None:
    """Why a file that begins with these `HEAD_BYTES` cannot be used, whatever follows; None if it may."""
    kind = _kind(head)
    return None if kind in _SIZES else _unsupported(kind)


def _unsupported(kind: str | None) -> ItemProblem:
    what = f"This looks like {kind}" if kind else "This is not a picture of a known kind"
    return ItemProblem("unsupported_image", f"{what}; taken are JPEG, PNG, WebP, GIF, BMP, TIFF and AVIF.")


# What a file is, by its first bytes. Kinds that we do not take are named, so that the message can say it.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"%PDF", "pdf"),
    (b"%!PS", "postscript"),
    (b"8BPS", "psd"),
    (b"PK\x03\x04", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"\0\0\1\0", "ico"),
    (b"\xff\x0a", "jpeg xl"),
    (b"\0\0\0\x0cJXL ", "jpeg xl"),
    (b"\0\0\0\x0cjP  ", "jpeg 2000"),
    (b"II+\0", "bigtiff"),
    (b"MM\0+", "bigtiff"),
)
_BMP_HEADERS = frozenset(bytes((length, 0, 0, 0)) for length in (12, 40, 52, 56, 64, 108, 124))
_BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "heic",
    b"heix": "heic",
    b"hevc": "heic",
    b"mif1": "heif",
}


def _kind(data: bytes) -> str | None:
    if data[4:8] == b"ftyp":  # first: its length may look like another kind's beginning
        major, size = data[8:12], int.from_bytes(data[:4], "big")
        brands = [major, *(data[i : i + 4] for i in range(16, min(size, 256), 4))]
        kinds = [_BRANDS[b] for b in brands if b in _BRANDS]
        return "AVIF" if "AVIF" in kinds else kinds[0] if kinds else "an iso media file"
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:2] == b"BM" and data[14:18] in _BMP_HEADERS:  # two letters alone prove little
        return "BMP"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    head = data[:HEAD_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"<svg") or (head.startswith(b"<?xml") and b"<svg" in head):
        return "svg"
    if head.startswith((b"<!doctype html", b"<html")):
        return "html"
    return None


# A file is made of some segments, not of millions: walking those would hold up everybody else.
MAX_SEGMENTS = 20_000
MAX_META_BYTES = 1 << 16  # of an AVIF; 300 are usual

# The next marker in entropy-coded data: 0xFF and neither a stuffed zero, a restart, nor a fill byte.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def _jpeg(data: bytes) -> tuple[int, int]:
    size: tuple[int, int] | None = None
    at = 2
    for _ in range(MAX_SEGMENTS):
        if not (found := _MARKER.search(data, at)):
            break
        marker, at = data[found.end() - 1], found.end()
        if marker == 0xD9:
            if size is None:
                raise _Cut
            return size
        if marker in (0x01, 0xD8):  # stand alone, without a length
            continue
        if marker in _FRAME_HEADERS and size is None:
            height, width = struct.unpack_from(">HH", data, at + 3)
            size = width, height
        at += struct.unpack_from(">H", data, at)[0]
    raise _Cut  # no end-of-image marker


def _png(data: bytes) -> tuple[int, int]:
    if data[12:16] != b"IHDR":
        raise _Cut
    width, height = struct.unpack_from(">II", data, 16)
    at = 8
    for _ in range(MAX_SEGMENTS):
        length, name = struct.unpack_from(">I4s", data, at)
        again = name == b"IHDR" and at != 8  # some decoders believe a second header
        at += 12 + length
        if again or at > len(data):
            raise _Cut
        if name == b"IEND":
            return width, height
    raise _Cut


def _webp(data: bytes) -> tuple[int, int]:
    (size,) = struct.unpack_from("<I", data, 4)
    if len(data) < 8 + size:
        raise _Cut
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise _Cut


def _gif(data: bytes) -> tuple[int, int]:
    """The canvas, stretched by a first picture that reaches beyond it."""
    width, height = struct.unpack_from("<HH", data, 6)
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)  # behind the colour table
    extension = False
    for _ in range(MAX_SEGMENTS):
        if extension:
            extension, at = data[at] != 0, at + 1 + data[at]
        elif data[at] == 0x21:
            extension, at = True, at + 2
        elif data[at] == 0x2C:
            left, top, columns, rows = struct.unpack_from("<HHHH", data, at + 1)
            return max(width, left + columns), max(height, top + rows)
        else:
            break
    raise _Cut


def _bmp(data: bytes) -> tuple[int, int]:
    (header,) = struct.unpack_from("<I", data, 14)
    if header == 12:  # OS/2
        width, height = struct.unpack_from("<HH", data, 18)
        return width, height
    width, height = struct.unpack_from("<ii", data, 18)
    if width < 0:
        raise _Cut
    return width, abs(height)  # a negative height means rows from the top


def _tiff(data: bytes) -> tuple[int, int]:
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, at)
    sizes: dict[int, int] = {}
    for entry in range(at + 2, at + 2 + 12 * min(entries, 4096), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", data, entry)
        if tag in (256, 257) and tag not in sizes:  # ImageWidth, ImageLength: the first counts
            number = {1: "B", 3: "H", 4: "I"}.get(kind)
            if number is None or count != 1:
                raise _Cut
            (sizes[tag],) = struct.unpack_from(order + number, data, entry + 8)
    if len(sizes) != 2:
        raise _Cut
    return sizes[256], sizes[257]


def _avif(data: bytes) -> tuple[int, int]:
    """The largest `ispe` property in the first `meta` box: a grid's tiles and a thumbnail have smaller ones."""
    at = 0
    for _ in range(MAX_SEGMENTS):
        length, name = struct.unpack_from(">I4s", data, at)
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, at + 8)
        end = min(at + length, len(data)) if length else len(data)
        if name == b"meta":
            properties = re.finditer(b"\0\0\0\x14ispe", data[at : min(end, at + MAX_META_BYTES)])
            sizes = [struct.unpack_from(">II", data, at + found.end() + 4) for found in properties]
            if not sizes:
                break
            width, height = max(sizes, key=lambda s: s[0] * s[1])
            return width, height
        at = max(end, at + 8)
    raise _Cut


_SIZES: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "WebP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
    "TIFF": _tiff,
    "AVIF": _avif,
}
