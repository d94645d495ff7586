"""Encoded image files → pictures: which formats are taken, and when a file is whole.

`read` is the way in; `imaging.py` beside this folder is its only caller.
"""

import contextlib
from collections.abc import Iterator

from PIL import Image

from .containers import read_container
from .errors import ImageError, Status
from .jpeg import read_jpeg, work
from .silence import Silence, silence_pillow

__all__ = ["ImageError", "Status", "costs_little", "only_image_errors", "read", "sniff"]

silence_pillow()
_silence = Silence()

_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
}
_BMP_HEADERS = frozenset(bytes((length, 0, 0, 0)) for length in (12, 40, 52, 56, 64, 108, 124))
_UNSUPPORTED = ("nsupported", "not supported", "not installed", "unknown pixel mode")


_LITTLE = 16_000_000  # pixels of all scans: 0.1 s, and 64 MB


def costs_little(data: bytes | memoryview) -> bool:
    """Whether `read` will take little time and memory, whatever these bytes are: so it is for most JPEGs.

    Of the other formats it cannot be told from outside.
    """
    kind = sniff(bytes(data[:256]))
    if kind != "JPEG":
        return kind is None
    try:
        return work(data) <= _LITTLE
    except (ImageError, IndexError):  # which `read` will find, too
        return True


def read(data: bytes | memoryview, max_pixels: int) -> tuple[Image.Image, int]:
    """Decode the first picture of an encoded file, alpha composited on white.

    Returns the picture as it is stored, in four bytes a pixel of which the first three are R, G, B (mode
    "RGB", or "CMYK" as a carrier of plain bytes), and the EXIF orientation, 1 to 8, that makes it upright.
    Raises ImageError, and nothing else, for any bytes whatever.
    """
    if not len(data):
        raise ImageError(Status.EMPTY, "no bytes")
    with only_image_errors():
        kind = sniff(bytes(data[:256]))
        if kind is None:
            raise ImageError(Status.UNSUPPORTED, "no signature of a format that is taken")
        if kind == "JPEG":
            return read_jpeg(data, max_pixels)
        with _silence:
            return read_container(kind, bytes(data), max_pixels)


def sniff(head: bytes) -> str | None:
    """The format, by Pillow's name for it, that the first bytes of a file announce (256 are plenty); or None."""
    if head[4:8] == b"ftyp":
        brands = {head[8:12]} | {head[i : i + 4] for i in range(16, min(len(head), int.from_bytes(head[:4], "big")), 4)}
        return "AVIF" if brands & {b"avif", b"avis"} else None
    if head[:2] == b"BM":  # two letters prove little: the next header must have a known length
        return "BMP" if head[14:18] in _BMP_HEADERS else None
    if head[:4] == b"RIFF":
        return "WEBP" if head[8:12] == b"WEBP" else None
    return next((kind for signature, kind in _SIGNATURES.items() if head.startswith(signature)), None)


@contextlib.contextmanager
def only_image_errors() -> Iterator[None]:
    """Turn whatever is raised inside into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, MemoryError) as error:
        raise ImageError(Status.TOO_LARGE, str(error)) from error
    except Exception as error:  # at damaged bytes libraries raise anything, from KeyError to RecursionError
        status = Status.UNSUPPORTED if any(w in str(error) for w in _UNSUPPORTED) else Status.CORRUPT
        raise ImageError(status, f"{type(error).__name__}: {error}") from error
