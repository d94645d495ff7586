"""Encoded bytes → `EncodedImage` or an `ImageProblem`, from the header alone: nothing is decoded here.

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

from gateway.errors import ImageProblem


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


class _Cut(Exception):
    """The file ends, or contradicts itself, before its header says so."""


def inspect(data: bytes, limits: ImageLimits) -> EncodedImage | ImageProblem:
    """Kind and size of one encoded image, or the reason why it cannot be used. Never raises."""
    if not data:
        return ImageProblem("empty_image", "The file is empty.")
    if len(data) > limits.max_file_bytes:
        return ImageProblem("file_too_large", f"The file has {len(data)} bytes; the limit is {limits.max_file_bytes}.")
    kind = _kind(data)
    if kind is None or kind not in _SIZES:
        what = f"This looks like {kind}" if kind else "This is not a picture of a known kind"
        return ImageProblem("unsupported_image", f"{what}; taken are JPEG, PNG, WebP, GIF, BMP, TIFF and AVIF.")
    try:
        width, height = _SIZES[kind](data)
    except (_Cut, struct.error, IndexError):
        return ImageProblem("corrupt_image", f"The {kind} file is cut short or damaged.")
    if width * height > limits.max_pixels:
        return ImageProblem(
            "image_too_large",
            f"The picture has {width}×{height} pixels; the limit is {limits.max_pixels} in all.",
        )
    if width == 0 or height == 0:
        return ImageProblem("corrupt_image", f"The {kind} file says that it has no pixels.")
    return EncodedImage(data, kind, width, height)


# What a file is, by its first bytes. Kinds that we do not take are named, so that the message can say it.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
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
_BRANDS = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "heic",
    b"heix": "heic",
    b"hevc": "heic",
    b"mif1": "heif",
}


def _kind(data: bytes) -> str | None:
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        major, size = data[8:12], int.from_bytes(data[:4], "big")
        brands = [major, *(data[i : i + 4] for i in range(16, min(size, 256), 4))]
        return next((_BRANDS[b] for b in brands if b in _BRANDS), "an iso media file")
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"<svg") or (head.startswith(b"<?xml") and b"<svg" in head):
        return "svg"
    if head.startswith((b"<!doctype html", b"<html")):
        return "html"
    return None


# A file is made of some segments, not of millions: walking those would hold up everybody else.
MAX_SEGMENTS = 20_000

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
        at += 12 + length
        if at > len(data):
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
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


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
        tag, kind = struct.unpack_from(order + "HH", data, entry)
        if tag in (256, 257):  # ImageWidth, ImageLength; SHORT is type 3, LONG is type 4
            sizes[tag] = struct.unpack_from(order + ("H" if kind == 3 else "I"), data, entry + 8)[0]
    if len(sizes) != 2:
        raise _Cut
    return sizes[256], sizes[257]


def _avif(data: bytes) -> tuple[int, int]:
    """The largest `ispe` property: a grid's tiles and a thumbnail have smaller ones."""
    sizes = [struct.unpack_from(">II", data, m.end() + 4) for m in re.finditer(b"ispe", data[:65536])]
    if not sizes:
        raise _Cut
    width, height = max(sizes, key=lambda s: s[0] * s[1])
    return width, height


_SIZES: dict[str, Callable[[bytes], tuple[int, int]]] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "WebP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
    "TIFF": _tiff,
    "AVIF": _avif,
}
