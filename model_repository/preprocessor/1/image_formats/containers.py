"""Everything but JPEG: opened by Pillow, after a look at what Pillow lets pass.

Pillow checks no CRC of a PNG's pixels, stops reading at the first frame's last pixel, and takes zeros for
coded pixels: a damaged file would become a made-up picture.
"""

import contextlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from .avif import boxes, check_avif_size
from .errors import ImageError, Status, check_size
from .exif import orientation_of
from .flatten import flatten
from .jpeg import read_jpeg
from .tiff_errors import no_tiff_errors

# PNG specification, section 8.2: first column and row of each pass, and the steps.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# Bytes of a value by its type; TIFF 6.0, section 2.
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_TIFF_DEFLATE = (8, 32946)
_TIFF_FAX = (2, 3, 4)
_TIFF_UNSIGNED = (1, 3, 4)
_TIFF_SIDES = (TiffImagePlugin.IMAGEWIDTH, TiffImagePlugin.IMAGELENGTH)
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the caller's pool has the cores already


def read_container(kind: str, data: bytes, max_pixels: int) -> tuple[Image.Image, int]:
    """Decode the first picture of a file of one of the kinds in `CONTAINERS`.

    Returns the picture as stored, mode "RGB", and the orientation that is left to apply. Raises ImageError,
    or whatever Pillow raises.
    """
    opener, check = CONTAINERS[kind]
    if check is not None:
        check(data, max_pixels)
    image = opener(io.BytesIO(data))
    check_size(*image.size, max_pixels)
    if isinstance(image, BmpImagePlugin.BmpImageFile):
        _check_bmp(image, data)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        _check_tiff(image, data, max_pixels)
    with no_tiff_errors():
        image.load()
    if kind == "BMP":
        _check_bmp_palette(image, data)
    if kind == "PNG":
        _check_png_palette(image, data)
        _check_png_rows(image, data)
    if kind == "TIFF":  # Pillow has turned it on loading
        return flatten(image, data), 1
    flat = flatten(image, data)
    if kind in ("GIF", "WEBP"):
        flat = _on_white_canvas(flat, _first_frame(kind, data))
    return flat, orientation_of(_exif(image))


def _exif(image: ImageFile.ImageFile) -> bytes:
    """EXIF as bytes. For AVIF, Pillow has put the container's own rotation there, which overrules EXIF."""
    exif: bytes = image.info.get("exif", b"")
    if not exif and (profile := image.info.get("Raw profile type exif")):  # how ImageMagick wrote it into PNG
        with contextlib.suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    return exif


def _check_png(data: bytes, max_pixels: int) -> None:
    """The CRC of every chunk up to the end chunk."""
    width, height = struct.unpack_from(">II", data, 16)
    check_size(width, height, max_pixels)
    headers = 0
    for kind, content, crc in _png_chunks(data):
        if zlib.crc32(content, zlib.crc32(kind)) != crc:
            raise ImageError(Status.CORRUPT, "a PNG chunk with a wrong CRC")
        headers += kind == b"IHDR"
    if headers != 1:
        raise ImageError(Status.CORRUPT, f"a PNG with {headers} headers, of which Pillow believes the last")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview, int]]:
    """(type, content, CRC) of each chunk; struct.error where the file ends too early."""
    view, at, kind = memoryview(data), 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        yield kind, view[at + 8 : at + 8 + length], crc
        at += 12 + length


def _check_png_rows(image: ImageFile.ImageFile, data: bytes) -> None:
    """Coded pixels that end early, all checksums right: Pillow leaves the rest black. The last rows show it."""
    bottom = np.asarray(image.crop((0, max(0, image.height - 2), *image.size)))
    if bottom.any(axis=tuple(range(1, bottom.ndim))).all():
        return
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    missing = 0
    for x, y, dx, dy in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - x) // dx), -(-(height - y) // dy)
        if columns > 0:
            missing += rows * (1 + (columns * bits + 7) // 8)
    inflate = zlib.decompressobj()
    for kind, content, _ in _png_chunks(data):
        coded = bytes(content) if kind == b"IDAT" else b""
        while coded:
            missing -= len(inflate.decompress(coded, 1 << 20))
            coded = inflate.unconsumed_tail
    if missing > 0:
        raise ImageError(Status.CORRUPT, f"a PNG that lacks {missing} bytes of its rows")


def _check_png_palette(image: ImageFile.ImageFile, data: bytes) -> None:
    """Pillow makes colours black that are not in the palette."""
    if image.mode == "P":
        colours = next(len(content) // 3 for kind, content, _ in _png_chunks(data) if kind == b"PLTE")
        if int(np.asarray(image).max()) >= colours:
            raise ImageError(Status.CORRUPT, f"a PNG that uses more colours than the {colours} of its palette")


def _check_gif(data: bytes, max_pixels: int) -> None:
    """All blocks up to the trailer."""
    width, height = struct.unpack_from("<HH", data, 6)
    check_size(width, height, max_pixels)
    at = 13 + _gif_palette(data[10])
    while (block := data[at]) != 0x3B:
        if block == 0x2C:  # a picture
            at += 11 + _gif_palette(data[at + 9])
        elif block == 0x21:  # an extension
            at += 2
        else:
            raise ImageError(Status.CORRUPT, "a GIF block of no known kind")
        while length := data[at]:
            at += 1 + length
        at += 1


def _gif_palette(flags: int) -> int:
    """Length in bytes of the colour table that these flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _check_webp(data: bytes, max_pixels: int) -> None:
    """The size of the canvas, which libwebp allocates on opening; and the end of the first picture."""
    if data[12:16] == b"VP8X":
        width, height = (1 + int.from_bytes(data[i : i + 3], "little") for i in (24, 27))
    elif data[12:16] == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    check_size(width, height, max_pixels)
    at = 12
    while True:
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind in (b"VP8 ", b"VP8L"):
            return _check_tail(data[at + 8 : at + 8 + length])
        at += 24 if kind == b"ANMF" else 8 + length + length % 2  # a frame of an animation: look inside


def _check_avif(data: bytes, max_pixels: int) -> None:
    """The size of the coded picture, and the end of the media data; libavif looks at the rest itself."""
    check_avif_size(data)
    for kind, content in boxes(memoryview(data)):
        if kind == b"mdat":
            return _check_tail(bytes(content))
    raise ImageError(Status.CORRUPT, "an AVIF without media data")


Box = tuple[int, int, int, int]


def _first_frame(kind: str, data: bytes) -> Box | None:
    """Where the first frame of an animation lies on its canvas: left, top, right, bottom; None for all of it."""
    if kind == "GIF":
        at = 13 + _gif_palette(data[10])
        while data[at] != 0x2C:
            at += 2
            while length := data[at]:
                at += 1 + length
            at += 1
        left, top, width, height = struct.unpack_from("<HHHH", data, at + 1)
        return left, top, left + width, top + height
    at = 12
    while at + 8 <= len(data) and data[at : at + 4] not in (b"VP8 ", b"VP8L"):
        if data[at : at + 4] == b"ANMF":
            left, top, width, height = (int.from_bytes(data[i : i + 3], "little") for i in range(at + 8, at + 20, 3))
            return 2 * left, 2 * top, 2 * left + width + 1, 2 * top + height + 1
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + length + length % 2
    return None


def _on_white_canvas(image: Image.Image, frame: Box | None) -> Image.Image:
    """What the first frame leaves open is transparent, so white; libraries take a colour of the palette, or black."""
    if frame is None or frame == (0, 0, *image.size):
        return image
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(image.crop(frame), frame[:2])
    return canvas


def _check_tail(coded: bytes) -> None:
    """Arithmetic decoders make a picture of zeros, which a broken download leaves behind.

    Measured: whole files end in up to 6 % of zeros (one colour, 4000 × 4000, WebP), photos in up to 20 bytes.
    """
    zeros = len(coded) - len(coded.rstrip(b"\0"))
    if zeros > max(64, len(coded) // 8):
        raise ImageError(Status.CORRUPT, f"the last {zeros} of {len(coded)} coded bytes are zeros")


def _check_bmp(image: BmpImagePlugin.BmpImageFile, data: bytes) -> None:
    """All rows with their padding."""
    (tile,) = image.tile
    if tile.codec_name == "raw" and isinstance(tile.args, tuple):
        _mode, stride, _direction = tile.args
        if tile.offset + stride * image.height > len(data):
            raise ImageError(Status.CORRUPT, "a BMP that ends before its last row does")


def _check_bmp_palette(image: ImageFile.ImageFile, data: bytes) -> None:
    """Pillow takes pixels for colours where there is less room for a palette than it announces."""
    offset, header = struct.unpack_from("<II", data, 10)
    colours = (offset - 14 - header) // (3 if header == 12 else 4)
    if image.mode == "P" and int(np.asarray(image).max()) >= colours:
        raise ImageError(Status.CORRUPT, f"a BMP that uses more colours than the {colours} of its palette")


def _check_tiff_directory(data: bytes, max_pixels: int) -> None:
    """All values of the first directory must be in the file: Pillow goes on without those that are cut off.

    And the size must be two plain numbers, or others would read another size than Pillow.
    """
    if data[2:4] not in (b"*\0", b"\0*"):
        return  # BigTIFF
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack_from(order + "I", data, 4)
    (entries,) = struct.unpack_from(order + "H", data, at)
    for entry in range(at + 2, at + 2 + 12 * entries, 12):
        tag, kind, count, where = struct.unpack_from(order + "HHII", data, entry)
        if tag in _TIFF_SIDES and (kind not in _TIFF_UNSIGNED or count != 1):
            raise ImageError(Status.CORRUPT, "a TIFF whose size is no number")
        size = count * _TIFF_BYTES.get(kind, 1)
        if size > 4 and where + size > len(data):
            raise ImageError(Status.CORRUPT, "a TIFF that ends before its directory's values")


def _check_tiff(image: TiffImagePlugin.TiffImageFile, data: bytes, max_pixels: int) -> None:
    """What Pillow and libtiff let pass. JPEG in TIFF (technical note 2): libtiff keeps libjpeg's warnings to itself."""
    tags = image.tag_v2
    image.info.pop("xmp", None)  # Pillow would turn the picture by it; EXIF counts, and nothing else
    if tags.get(TiffImagePlugin.COMPRESSION) in _TIFF_FAX:
        raise ImageError(Status.UNSUPPORTED, "fax codes, which cannot tell damage from a picture")
    if tags.get(TiffImagePlugin.PLANAR_CONFIGURATION) == 2 and tags.get(TiffImagePlugin.BITSPERSAMPLE, (8,))[0] > 8:
        raise ImageError(Status.UNSUPPORTED, "16 bits in separate planes, which Pillow mixes up")
    offsets = tags.get(TiffImagePlugin.STRIPOFFSETS) or tags[TiffImagePlugin.TILEOFFSETS]
    if len(offsets) < _tiff_parts(image):
        raise ImageError(Status.CORRUPT, f"a TIFF with {len(offsets)} of {_tiff_parts(image)} strips or tiles")
    if tags.get(TiffImagePlugin.COMPRESSION) in _TIFF_DEFLATE:
        lengths = tags.get(TiffImagePlugin.STRIPBYTECOUNTS) or tags[TiffImagePlugin.TILEBYTECOUNTS]
        for offset, length in zip(offsets, lengths, strict=True):
            _check_deflate(data[offset : offset + length])
    if tags.get(TiffImagePlugin.COMPRESSION) != 7:
        return
    tables = tags.get(TiffImagePlugin.JPEGTABLES, b"")[:-2]
    lengths = tags.get(TiffImagePlugin.STRIPBYTECOUNTS) or tags[TiffImagePlugin.TILEBYTECOUNTS]
    for offset, length in zip(offsets, lengths, strict=True):
        part = data[offset : offset + length]
        read_jpeg(tables + part[2:] if tables else part, max_pixels)


def _check_deflate(coded: bytes) -> None:
    """To its end and its checksum: libtiff stops when it has enough pixels, whatever they are."""
    inflate = zlib.decompressobj()
    while coded and not inflate.eof:
        inflate.decompress(coded, 1 << 20)
        coded = inflate.unconsumed_tail
    if not inflate.eof:
        raise ImageError(Status.CORRUPT, "a TIFF with a deflate stream that does not end")


def _tiff_parts(image: TiffImagePlugin.TiffImageFile) -> int:
    """How many strips or tiles it takes to hold all pixels."""
    tags = image.tag_v2
    planes = tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1) if tags.get(TiffImagePlugin.PLANAR_CONFIGURATION) == 2 else 1
    width, height = tags[TiffImagePlugin.IMAGEWIDTH], tags[TiffImagePlugin.IMAGELENGTH]
    if TiffImagePlugin.STRIPOFFSETS in tags:
        columns, rows = 1, -(-height // min(height, tags.get(TiffImagePlugin.ROWSPERSTRIP, height)))
    else:
        columns = -(-width // tags[TiffImagePlugin.TILEWIDTH])
        rows = -(-height // tags[TiffImagePlugin.TILELENGTH])
    return int(columns * rows * planes)


CONTAINERS: dict[str, tuple[Callable[[io.BytesIO], ImageFile.ImageFile], Callable[[bytes, int], None] | None]] = {
    "AVIF": (AvifImagePlugin.AvifImageFile, _check_avif),
    "BMP": (BmpImagePlugin.BmpImageFile, None),
    "GIF": (GifImagePlugin.GifImageFile, _check_gif),
    "PNG": (PngImagePlugin.PngImageFile, _check_png),
    "TIFF": (TiffImagePlugin.TiffImageFile, _check_tiff_directory),
    "WEBP": (WebPImagePlugin.WebPImageFile, _check_webp),
}
