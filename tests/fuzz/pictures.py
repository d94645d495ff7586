"""Picture files as lists of parts, so that a fuzzer's changes get past lengths and checksums."""

from __future__ import annotations

import functools
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.fuzz.mutations import damaged, rearranged
from tests.model_repository.picture_files import exif, flat, png, scene, tiff
from tests.pictures import encode

MAX_BYTES = 1 << 16
Part = tuple[bytes, bytes]  # what comes before the content and names it, the content

TOKENS = (
    *b"IHDR IDAT IEND PLTE tRNS eXIf acTL fcTL fdAT VP8L VP8X ALPH ANIM ANMF EXIF GIF89a BM Adobe".split(),
    *b"ftypavif meta ispe irot imir clap mdat".split(),
    *(bytes((0xFF, marker)) for marker in (0xC0, 0xC2, 0xC4, 0xD8, 0xD9, 0xDA, 0xDD, 0xE1)),
    *(b"VP8 ", b"\x21\xf9\x04", b"Exif\0\0", b"MM\0*", b"II*\0"),
)


@functools.cache
def seeds() -> list[bytes]:
    """One small file of each way in which a picture can be coded; 30 kB in all."""
    picture = scene(24, 16)
    wide = Image.new("I;16", (8, 6), 40000)
    frames: dict[str, Any] = {"save_all": True, "append_images": [flat("blue", size=(24, 16))]}
    clear = flat((200, 10, 10, 99), "RGBA")
    return [
        encode(picture, "JPEG", quality=80, exif=exif(6)),
        encode(picture, "JPEG", progressive=True),
        encode(picture, "JPEG", restart_marker_rows=1, subsampling=0),
        encode(picture.convert("L"), "JPEG"),
        encode(picture.convert("CMYK"), "JPEG"),
        encode(picture, "MPO", save_all=True, append_images=[flat("blue")]),
        encode(picture, "PNG", exif=exif(3)),
        encode(picture.quantize(16), "PNG", transparency=3),
        encode(picture, "PNG", **frames),
        encode(clear, "PNG"),
        encode(wide, "PNG"),
        png(3, 2, 16, 2, (b"\0" + bytes(range(18))) * 2, (b"tRNS", bytes(6))),
        png(9, 5, 2, 0, (b"\0" + b"\x1b\x2d\x80") * 5, (b"tRNS", b"\0\1")),
        encode(picture, "WEBP", quality=60, exif=exif(8).tobytes()),
        encode(picture, "WEBP", lossless=True),
        encode(clear, "WEBP"),
        encode(picture, "WEBP", **frames),
        encode(picture.quantize(8), "GIF"),
        encode(picture, "GIF", **frames),
        encode(picture.resize((9, 7)), "BMP"),
        encode(picture.quantize(16).resize((9, 7)), "BMP"),
        encode(flat(1, "1"), "BMP"),
        encode(picture, "AVIF", quality=50),
        encode(clear, "AVIF", exif=exif(5).tobytes()),
        encode(picture.resize((9, 7)), "TIFF"),
        encode(wide, "TIFF"),
        encode(flat(1, "1"), "TIFF", compression="group4"),
        encode(flat((255, 0, 0, 0), "CMYK"), "TIFF", tiffinfo={274: 5}),
        tiff(2, 2, bytes(12), {258: (8, 8, 8), 262: 2, 277: 3}),
        *(encode(picture, "TIFF", compression=c) for c in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
        encode(picture, "TIFF", big_tiff=True),
        _rle_bmp(b"\x05\x01\0\0\0\x05\1\2\3\4\5\0\0\0\0\x02\x02\1\0\0\0\1"),
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(32),
    ]


def _rle_bmp(runs: bytes) -> bytes:
    """8 bits, run-length encoded, 5 × 4 pixels of 6 colours."""
    head = struct.pack("<IiiHHIIiiII", 40, 5, 4, 1, 8, 1, len(runs), 0, 0, 6, 0) + bytes(range(24))
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(runs), 0, 0, 14 + len(head)) + head + runs


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Parts changed and put together again with right lengths and checksums, or bytes changed, or both."""
    if rng.random() < 0.6:
        head, parts, join = split(data)
        if parts and rng.random() < 0.4:
            strangers = split(rng.choice(seeds()))
            parts = rearranged(parts, rng, strangers[1] if strangers[2] is join else ())
        elif parts:
            at = rng.randrange(len(parts))
            name, content = parts[at]
            parts[at] = name, _inside(name, content, rng)
        data = join(head, parts)
        if rng.random() < 0.5:
            return data[:MAX_BYTES]
    return damaged(data, rng, TOKENS)[:MAX_BYTES]


def _inside(name: bytes, content: bytes, rng: random.Random) -> bytes:
    if name == b"IDAT" and rng.random() < 0.7:
        try:
            inflated = zlib.decompressobj().decompress(content, MAX_BYTES)
        except zlib.error:
            return damaged(content, rng)
        return zlib.compress(damaged(inflated, rng), 1)
    if len(content) > 8 and rng.random() < 0.3:  # sizes are in front
        return damaged(content[:24], rng, TOKENS) + content[24:]
    return damaged(content, rng, TOKENS)


def split(data: bytes) -> tuple[bytes, list[Part], Callable[[bytes, list[Part]], bytes]]:
    """The signature, the parts behind it, and what puts them together; what cannot be read is one part."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data[:8], _chunks(data[8:], ">I4s", 4, 0), _join_png
    if data.startswith(b"RIFF"):
        return data[:12], _chunks(data[12:], "<4sI", 0, 1), _join_riff
    if data[4:8] == b"ftyp":
        return b"", _boxes(data), _join_boxes
    if data.startswith(b"\xff\xd8"):
        return data[:2], _segments(data), _join_jpeg
    if data[:4] in (b"II*\0", b"MM\0*"):
        return data[:4], _entries(data), _join_plain
    step = max(1, len(data) // 8)
    return b"", [(b"", data[i : i + step]) for i in range(0, len(data), step)], _join_plain


def _chunks(data: bytes, layout: str, tail: int, pad: int) -> list[Part]:
    parts: list[Part] = []
    at = 0
    while len(data) >= at + 8:
        a, b = struct.unpack_from(layout, data, at)
        name, length = (a, b) if isinstance(a, bytes) else (b, a)
        parts.append((name, data[at + 8 : at + 8 + length]))
        at += 8 + length + tail + (length & pad)
    return parts


def _join_png(head: bytes, parts: list[Part]) -> bytes:
    chunks = (struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in parts)
    return head + b"".join(chunks)


def _join_riff(head: bytes, parts: list[Part]) -> bytes:
    body = b"".join(n + struct.pack("<I", len(c)) + c + bytes(len(c) & 1) for n, c in parts)
    return head[:4] + struct.pack("<I", 4 + len(body)) + head[8:] + body


def _boxes(data: bytes) -> list[Part]:
    parts: list[Part] = []
    at = 0
    while len(data) >= at + 8:
        length, name = struct.unpack_from(">I4s", data, at)
        length = max(8, length or len(data))
        parts.append((name, data[at + 8 : at + length]))
        at += length
    return parts


def _join_boxes(head: bytes, parts: list[Part]) -> bytes:
    return b"".join(struct.pack(">I", 8 + len(c)) + n + c for n, c in parts)


def _segments(data: bytes) -> list[Part]:
    """Marker and content; of a scan, with the coded pixels behind it."""
    parts: list[Part] = []
    at = 2
    while at + 4 <= len(data):
        length = max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        after = at + 2 + length
        if data[at + 1] == 0xDA:
            after = next((i for i in range(after, len(data) - 1) if data[i] == 0xFF and data[i + 1] > 0xD7), len(data))
        parts.append((data[at : at + 2], data[at + 4 : after]))
        at = after
    return [*parts, (data[at:], b"")]


def _join_jpeg(head: bytes, parts: list[Part]) -> bytes:
    out = [head]
    for name, content in parts:
        length = len(content) + 2 if name != b"\xff\xda" else 6 + 2 * (content[0] if content else 0)
        out.append(
            name + (struct.pack(">H", length & 0xFFFF) if len(name) == 2 and name != b"\xff\xd9" else b"") + content
        )
    return b"".join(out)


def _entries(data: bytes) -> list[Part]:
    """The first directory's entries, and what is before and behind them."""
    order = "<" if data[:2] == b"II" else ">"
    if len(data) < 8:
        return [(b"", data[4:])]
    (at,) = struct.unpack_from(order + "I", data, 4)
    if at + 2 > len(data):
        return [(b"", data[4:])]
    (count,) = struct.unpack_from(order + "H", data, at)
    end = at + 2 + 12 * count
    entries = [(data[i : i + 2], data[i + 2 : i + 12]) for i in range(at + 2, min(end, len(data)), 12)]
    return [(b"", data[4 : at + 2]), *entries, (b"", data[end:])]


def _join_plain(head: bytes, parts: list[Part]) -> bytes:
    return head + b"".join(name + content for name, content in parts)
