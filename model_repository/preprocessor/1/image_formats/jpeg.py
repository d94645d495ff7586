"""JPEG: read strictly, and still without a fuss about what does not touch the pixels."""

import io
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, JpegImagePlugin

from .errors import ImageError, Status, check_size
from .exif import orientation_of

# Markers of ITU-T T.81, table B.1.
_SOS, _EOI, _APP0, _APP1 = 0xDA, 0xD9, 0xE0, 0xE1
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_KEPT = _SOF | {0xC4, 0xCC, 0xDB, 0xDD, 0xEE}  # and the tables that a decoder needs
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # those without a length are part of what surrounds them
_MAX_SEGMENTS = 5000  # real files have fewer than 500; millions of empty ones would only cost time
_MAX_SCANS = 100  # encoders write about 10; each one more is another walk over all pixels
_JFIF = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
# Warnings of libjpeg (its jerror.h) that concern the wrapping of a file and not its pixels.
_HARMLESS = ("extraneous bytes before marker", "unknown JFIF revision", "Invalid SOS parameters", "bad ICC marker")

_KEPT_BYTES = 64 << 20  # a 16-megapixel photo
_thread = threading.local()


def read_jpeg(data: bytes | memoryview, max_pixels: int) -> tuple[Image.Image, int]:
    """Decode a JPEG of any kind with 8 bits a sample; of an MPO, the first picture.

    Returns the picture as stored, in four bytes a pixel of which the first three are R, G, B, and its
    EXIF orientation; its pixels are the thread's own memory, which its next call writes over.
    CMYK is always taken by Adobe's convention (255 is no ink), as browsers and Pillow do.
    Raises ImageError or ValueError. Anything that libjpeg warns of is an error, unless it is known to be
    harmless and the file without it raises no warning.
    """
    header = _header(data)
    width, height, orientation = header.width, header.height, header.orientation
    check_size(width, height, max_pixels)
    if header.scans > _MAX_SCANS:
        raise ImageError(Status.CORRUPT, f"a JPEG of {header.scans} scans")
    if header.missing:
        raise ImageError(Status.CORRUPT, f"a JPEG without the pixels of {header.missing} of its components")
    buffer = _scratch(4 * width * height)
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGBA", buffer=buffer, strict=True)
    except ValueError as error:
        if "subsampling" in str(error):
            # 4:1:0 and rarer: Pillow knows them, TurboJPEG does not. Here only a missing end is noticed.
            image = JpegImagePlugin.JpegImageFile(io.BytesIO(mended(bytes(data))))
            check_size(*image.size, max_pixels)
            return image.convert("RGB"), orientation
        if not any(words in str(error) for words in _HARMLESS):
            raise
        # libjpeg tells of its first warning only, which may hide a worse one: mend that, and look again.
        try:
            pixels = simplejpeg.decode_jpeg(mended(bytes(data)), "RGBA", buffer=buffer, strict=True)
        except ValueError:
            pixels = simplejpeg.decode_jpeg(mended(bytes(data), trim=True), "RGBA", buffer=buffer, strict=True)
    # "CMYK" is the only mode of Pillow that maps four plain bytes a pixel without a copy and can be resized.
    return Image.frombuffer("CMYK", pixels.shape[1::-1], pixels, "raw", "CMYK", 0, 1), orientation


def _scratch(size: int) -> npt.NDArray[np.uint8]:
    """At least `size` bytes, kept for the thread's next picture: fresh pages cost a quarter of a decode."""
    if size > _KEPT_BYTES:
        return np.empty(size, np.uint8)
    kept: npt.NDArray[np.uint8] | None = getattr(_thread, "scratch", None)
    if kept is None or kept.size < size:
        kept = _thread.scratch = np.empty(size, np.uint8)
    return kept


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(marker, where it is, first byte after it, first byte after its segment) up to the end marker.

    Coded pixels are what lies between one segment and the next.
    """
    end = 2
    for _ in range(_MAX_SEGMENTS):
        found = _MARKER.search(data, end)
        if found is None:
            break
        at, start = found.span()
        end = start + max(2, int.from_bytes(data[start : start + 2], "big"))
        yield data[start - 1], at, start, end
        if data[start - 1] == _EOI:
            break
    else:
        raise ImageError(Status.CORRUPT, f"a JPEG of {_MAX_SEGMENTS} segments and more")


@dataclass(frozen=True)
class _Header:
    """What a file says of itself before anything is decoded."""

    width: int
    height: int
    orientation: int
    scans: int
    missing: int  # components that no scan holds: libjpeg takes zeros for them, without a warning


def _header(data: bytes | memoryview) -> _Header:
    """Size and EXIF orientation from the segments before the first scan; scans are counted to the end of the file
    unless the first one holds the whole picture."""
    width = height = scans = components = 0
    orientation = 1
    missing: set[int] = set()
    whole = False
    for marker, _, start, end in _segments(data):
        if marker == _SOS:
            scans += 1
            count = data[start + 2]
            missing -= {data[i] for i in range(start + 3, start + 3 + 2 * count, 2)}
            if whole and count == components:
                break
        elif scans:
            continue
        elif marker in _SOF:
            height, width = (int.from_bytes(data[i : i + 2], "big") for i in (start + 3, start + 5))
            whole, components = marker in _SEQUENTIAL, data[start + 7]
            missing = {data[i] for i in range(start + 8, start + 8 + 3 * components, 3)}
        elif marker == _APP1 and data[start + 2 : start + 8] == b"Exif\0\0":
            orientation = orientation_of(bytes(data[start + 2 : end]))
    return _Header(width, height, orientation, scans, len(missing))


def work(data: bytes | memoryview) -> int:
    """Pixels of all scans together, by which time and memory can be foretold. Raises as `read_jpeg` does."""
    header = _header(data)
    return header.width * header.height * max(1, header.scans)


def mended(data: bytes, trim: bool = False) -> bytes:
    """The same coded picture without comments and profiles, bytes between segments, a wrong JFIF revision or
    spectral range and, with `trim`, zeros after the last pixel. Raises ImageError if the file has no end marker.
    """
    kept, scan, sequential = [b"\xff\xd8"], None, False
    for marker, at, start, end in _segments(data):
        if scan is not None:
            pixels = data[scan:at]
            if trim:
                bare = pixels.rstrip(b"\0")
                pixels = bare + b"\0" if bare.endswith(b"\xff") else bare
            kept.append(pixels)
        scan = end if marker == _SOS else None
        body = data[start:end]
        if marker == _EOI:
            return b"".join([*kept, b"\xff\xd9"])
        if marker in _SOF:
            sequential = marker in _SEQUENTIAL
        if marker in _KEPT:
            kept += [bytes((0xFF, marker)), body]
        elif marker == _APP0 and body[2:7] == b"JFIF\0":
            kept.append(_JFIF)
        elif marker == _SOS:
            kept += [b"\xff\xda", body[:-3] + b"\x00\x3f\x00" if sequential else body]
    raise ImageError(Status.CORRUPT, "no end marker")
