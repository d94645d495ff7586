"""The one EXIF tag that matters here."""

import contextlib
import struct

_ORIENTATION = 0x0112  # EXIF 2.32, table 4
_LONG = 4


def orientation_of(exif: bytes) -> int:
    """The orientation, 1 to 8, that a block of EXIF asks for; 1 if it is missing, broken or no such number."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for at in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", tiff, at)
            if tag == _ORIENTATION:
                (value,) = struct.unpack_from(order + ("I" if kind == _LONG else "H"), tiff, at + 8)
                return int(value) if 1 <= value <= 8 else 1
    return 1
