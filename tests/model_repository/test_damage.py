"""A damaged file is an error of its own kind, never a made-up picture, and never anything but an ImageError."""

from __future__ import annotations

import io
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from tests.model_repository.picture_files import (
    CORRUPT,
    EMPTY,
    OK,
    TOO_LARGE,
    UNSUPPORTED,
    decode,
    flat,
    imaging,
    png,
    png_chunk,
    scene,
    status_of,
)
from tests.pictures import encode


def _files() -> dict[str, bytes]:
    picture, second = scene(), scene(seed=1)
    many: dict[str, Any] = {"save_all": True, "append_images": [second]}
    return {
        "JPEG": encode(picture, "JPEG", quality=90),
        "JPEG progressive": encode(picture, "JPEG", progressive=True),
        "JPEG with restarts": encode(picture, "JPEG", restart_marker_rows=1),
        "JPEG grey": encode(picture.convert("L"), "JPEG"),
        "JPEG CMYK": encode(picture.convert("CMYK"), "JPEG"),
        "PNG": encode(picture, "PNG"),
        "PNG palette": encode(picture.quantize(16), "PNG"),
        "APNG": encode(picture, "PNG", **many),
        "WebP": encode(picture, "WEBP", quality=80),
        "WebP lossless": encode(picture, "WEBP", lossless=True),
        "WebP animated": encode(picture, "WEBP", **many),
        "GIF": encode(picture, "GIF"),
        "GIF animated": encode(picture, "GIF", **many),
        "BMP": encode(picture.resize((97, 64)), "BMP"),
        "BMP palette": encode(picture.quantize(16), "BMP"),
        "TIFF": encode(picture, "TIFF"),
        "AVIF": encode(picture, "AVIF"),
    }


FILES = _files()
# libtiff leaves odds and ends behind the last strip: cut these in the middle, not near the end
COMPRESSED_TIFFS = {
    method: encode(scene(), "TIFF", compression=method) for method in ("tiff_lzw", "tiff_adobe_deflate", "jpeg")
}
each_file = pytest.mark.parametrize("name", FILES)


@each_file
def test_a_file_cut_anywhere_is_corrupt(name: str) -> None:
    """Half of it, most of it, all but its last two bytes or its last one."""
    whole = FILES[name]
    for length in (len(whole) // 4, len(whole) // 2, len(whole) * 9 // 10, len(whole) - 2, len(whole) - 1):
        assert status_of(whole[:length]) == CORRUPT, length


@pytest.mark.parametrize("method", COMPRESSED_TIFFS)
def test_a_compressed_tiff_cut_at_half_is_corrupt(method: str) -> None:
    """With nothing behind the cut, and with zeros."""
    whole = COMPRESSED_TIFFS[method]
    assert status_of(whole) == OK
    assert status_of(whole[: len(whole) // 2]) == CORRUPT
    assert status_of(whole[: len(whole) // 2] + bytes(50_000)) == CORRUPT


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("BMP", "BMP palette", "TIFF")])
def test_zeros_do_not_make_a_cut_file_whole(name: str) -> None:
    """A file cut at half and filled up with zeros is corrupt; only plain rows of pixels can hide it."""
    half = FILES[name][: len(FILES[name]) // 2]
    assert status_of(half + bytes(len(half))) == CORRUPT
    assert status_of(half + bytes(50_000)) == CORRUPT


@each_file
def test_what_follows_a_whole_file_does_not_matter(name: str) -> None:
    """1.5 MB of zeros, or a second file, behind the end change no pixel."""
    want = decode(FILES[name])
    for junk in (bytes(1_500_000), b"\xff\xd8\xff and so on", FILES["JPEG"]):
        assert (decode(FILES[name] + junk) == want).all()


def test_files_that_end_in_zeros_are_whole() -> None:
    """Black pixels are zeros, and belong to the picture."""
    for kind in ("BMP", "TIFF"):
        assert not decode(encode(flat("black", size=(64, 64)), kind)).any()
    for side in (16, 500):
        assert not decode(encode(flat("black", size=(side, side)), "WEBP")).any()


JPEG = FILES["JPEG"]
SCAN = JPEG.index(b"\xff\xda")
PIXELS = SCAN + 2 + int.from_bytes(JPEG[SCAN + 2 : SCAN + 4], "big")


def test_damaged_coded_pixels_are_corrupt() -> None:
    """A hole of zeros in a JPEG's coded pixels, with its end in place, is noticed."""
    for middle in (PIXELS + 400, len(JPEG) - 600):
        assert status_of(JPEG[:middle] + bytes(500) + JPEG[middle + 500 :]) == CORRUPT


@pytest.mark.parametrize(
    "odd",
    {
        "bytes before a segment": JPEG[:SCAN] + b"\1\2\3" + JPEG[SCAN:],
        "another JFIF revision": JPEG.replace(b"JFIF\0\1", b"JFIF\0\2"),
        "spectral range of a progressive file": JPEG[: PIXELS - 3] + b"\0\0\0" + JPEG[PIXELS:],
        "two zeros before the end": JPEG[:-2] + bytes(2) + JPEG[-2:],
        "many zeros before the end": JPEG[:-2] + bytes(4096) + JPEG[-2:],
        "fill bytes before the end": JPEG[:-2] + b"\xff" * 9 + JPEG[-2:],
    }.items(),
    ids=lambda item: item[0],
)
def test_oddities_that_touch_no_pixel_are_accepted(odd: tuple[str, bytes]) -> None:
    """libjpeg warns of these; the pixels are those of the clean file."""
    assert (decode(odd[1]) == decode(JPEG)).all()


def test_a_harmless_oddity_hides_no_damage() -> None:
    """libjpeg reports its first warning only; a file with an odd header and a hole is corrupt."""
    odd = JPEG[:SCAN] + b"\1\2\3" + JPEG[SCAN:]
    assert status_of(odd[:-600] + bytes(598) + odd[-2:]) == CORRUPT
    assert status_of(odd[:-2]) == CORRUPT


@pytest.mark.parametrize("chunk", [b"IHDR", b"IDAT", b"IEND"])
def test_a_wrong_crc_in_a_png_is_corrupt(chunk: bytes) -> None:
    """Of the header, the pixels and the end alike."""
    blob = bytearray(encode(scene(), "PNG"))
    at = blob.index(chunk)
    length = int.from_bytes(blob[at - 4 : at], "big")
    blob[at + 4 + length] ^= 1
    assert status_of(bytes(blob)) == CORRUPT


@pytest.mark.parametrize("rows", [0, 4, 7])
def test_a_png_with_too_few_rows_is_corrupt(rows: int) -> None:
    """All checksums are right, but pixels are not there; a black picture with all its rows is fine."""
    assert status_of(png(8, 8, 8, 0, (b"\0" + b"\x7f" * 8) * rows)) == CORRUPT
    assert status_of(png(8, 8, 8, 0, bytes(9 * 8))) == OK


@pytest.mark.parametrize(("size", "coded"), [((1, 1), 4), ((5, 3), 52), ((8, 8), 207)])
def test_an_interlaced_black_png_is_whole(size: tuple[int, int], coded: int) -> None:
    """Its seven passes are counted right: one byte less is too little."""
    for length, status in ((coded, OK), (coded - 1, CORRUPT)):
        blob = bytearray(png(*size, 8, 2, bytes(length)))
        blob[28] = 1
        blob[29:33] = struct.pack(">I", zlib.crc32(blob[12:29]))
        assert status_of(bytes(blob)) == status


@pytest.mark.parametrize(
    ("blob", "status"),
    {
        "empty": (b"", EMPTY),
        "one byte": (b"\xff", UNSUPPORTED),
        "zeros": (bytes(5000), UNSUPPORTED),
        "text": (b"BMW is a car, and RIFF a word", UNSUPPORTED),
        "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>", UNSUPPORTED),
        "HTML": (b"<!doctype html><title>access denied</title>", UNSUPPORTED),
        "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", UNSUPPORTED),
        "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", UNSUPPORTED),
        "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), UNSUPPORTED),
        "HEIC of any kind": (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(64), UNSUPPORTED),
        "AVIF without pixels": (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif" + bytes(64), CORRUPT),
        "WAV": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(28), UNSUPPORTED),
        "ICO": (encode(flat("red"), "ICO"), UNSUPPORTED),
        "PPM": (encode(flat("red"), "PPM"), UNSUPPORTED),
        "JPEG 2000": (encode(flat("red"), "JPEG2000"), UNSUPPORTED),
        "JPEG of 12 bits": (JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), UNSUPPORTED),
        "only a JPEG's first bytes": (b"\xff\xd8\xff", CORRUPT),
    }.values(),
)
def test_bytes_that_are_no_usable_image(blob: bytes, status: int) -> None:
    """Each kind has its status; what is not taken is never opened."""
    assert status_of(blob) == status


def _bombs() -> dict[str, bytes]:
    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    frame = JPEG.index(b"\xff\xc0")
    size = struct.pack(">HH", 20000, 20000)
    canvas = b"VP8X\x0a\0\0\0" + bytes(4) + (19999).to_bytes(3, "little") * 2
    return {
        "PNG header": b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header),
        "PNG": encode(Image.new("1", (4096, 4096)), "PNG"),
        "JPEG header": JPEG[: frame + 5] + size + JPEG[frame + 9 : frame + 19],
        "JPEG": JPEG[: frame + 5] + size + JPEG[frame + 9 :],
        "WebP": b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas,
        "GIF header": b"GIF89a" + struct.pack("<HH", 20000, 20000) + b"\0\0\0",
        "BMP header": encode(flat("red"), "BMP").replace(struct.pack("<ii", 16, 12), struct.pack("<ii", 20000, 20000)),
        "TIFF": encode(Image.new("1", (4096, 4096)), "TIFF", compression="group4"),
        "AVIF": encode(flat("red", size=(1100, 1000)), "AVIF", speed=10),
    }


@pytest.mark.parametrize("blob", _bombs().items(), ids=lambda item: item[0])
def test_pixels_are_counted_before_decoding(blob: tuple[str, bytes]) -> None:
    """A header that promises too many pixels is enough, and costs no memory, however often."""
    assert status_of(blob[1]) == TOO_LARGE
    tracemalloc.start()
    for _ in range(100):
        assert status_of(blob[1]) == TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_limit_itself_is_allowed() -> None:
    """max_pixels pixels are taken, one more is not."""
    blob = encode(flat("red", size=(40, 25)), "PNG")
    assert status_of(blob, 1000) == OK
    assert status_of(blob, 999) == TOO_LARGE


def _scans(count: int, blob: bytes) -> bytes:
    """A progressive JPEG with its last scan repeated until it has `count`."""
    parts = blob[:-2].split(b"\xff\xda")
    return b"\xff\xda".join([*parts, *[parts[-1]] * (count + 1 - len(parts))]) + b"\xff\xd9"


def test_scans_are_counted_before_decoding() -> None:
    """A small progressive file can ask for a thousand walks over all its pixels."""
    blob = encode(flat("red", size=(1000, 1000)), "JPEG", progressive=True)
    with pytest.raises(imaging.ImageError, match="a JPEG of 1000 scans"):
        decode(_scans(1000, blob))


def test_segments_are_counted_before_decoding() -> None:
    """Millions of empty comments cannot hide what follows them."""
    comments = b"\xff\xfe\0\2" * 6000
    with pytest.raises(imaging.ImageError, match="5000 segments"):
        decode(JPEG[:2] + comments + JPEG[2:])


@pytest.mark.parametrize(
    ("blob", "cheap"),
    [
        (JPEG, True),
        (encode(flat("red", size=(4000, 4000)), "JPEG"), True),
        (encode(flat("red", size=(4100, 4000)), "JPEG"), False),
        (encode(flat("red", size=(1200, 1200)), "JPEG", progressive=True), True),
        (encode(flat("red", size=(2000, 2000)), "JPEG", progressive=True), False),
        (_scans(99, encode(flat("red", size=(500, 500)), "JPEG", progressive=True)), False),
        (JPEG[:20], True),
        (encode(flat("red"), "PNG"), False),
        (encode(flat("red"), "WEBP"), False),
        (b"", True),
        (b"words", True),
    ],
)
def test_what_costs_little(blob: bytes, cheap: bool) -> None:
    """JPEGs of few pixels times scans, and what is refused at a glance; of the rest nobody knows."""
    assert imaging.costs_little(blob) is cheap


def test_a_side_is_limited_too() -> None:
    """One row of many pixels costs far more than its pixels say."""
    assert status_of(encode(Image.new("1", (65535, 1)), "PNG")) == OK
    assert status_of(encode(Image.new("1", (1, 65535)), "PNG")) == OK
    assert status_of(encode(Image.new("1", (65536, 1)), "PNG")) == TOO_LARGE
    assert status_of(encode(Image.new("1", (1, 65536)), "PNG")) == TOO_LARGE


def _damaged(blob: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, half of the time among the first 300, and sometimes the end cut off."""
    out = bytearray(blob)
    for at in rng.integers(0, len(out) if rng.random() < 0.5 else min(300, len(out)), rng.integers(1, 8)):
        out[at] = rng.integers(0, 256)
    return bytes(out[: rng.integers(0, len(out))] if rng.random() < 0.2 else out)


@pytest.mark.parametrize("name", [*FILES, *COMPRESSED_TIFFS])
def test_damage_gives_a_picture_or_an_image_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing else is raised, and neither a warning nor a line is printed, also not by C libraries."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    whole = FILES.get(name) or COMPRESSED_TIFFS[name]
    for _ in range(60):
        assert status_of(_damaged(whole, rng)) in (OK, UNSUPPORTED, CORRUPT, TOO_LARGE)
    assert capfd.readouterr() == ("", "")


def test_noise_behind_every_signature_is_an_image_error() -> None:
    """Random bytes that start like an image are refused."""
    rng = np.random.default_rng(0)
    for whole in FILES.values():
        for length in (16, 200, 3000):
            assert status_of(whole[:16] + rng.bytes(length)) != OK


def test_threads_do_not_disturb_each_other() -> None:
    """Whole and damaged files on eight threads give what they give alone, and leave the filters of warnings alone."""
    before = list(warnings.filters)
    blobs = [*FILES.values(), *COMPRESSED_TIFFS.values()] * 8
    blobs = [blob if i % 3 else blob[: len(blob) // 2] for i, blob in enumerate(blobs)]
    alone = [status_of(blob) or decode(blob).tobytes() for blob in blobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda blob: status_of(blob) or decode(blob).tobytes(), blobs))
    assert together == alone
    assert warnings.filters == before


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"])
@pytest.mark.parametrize("missing", [1, 2, 16])
def test_a_tiff_without_its_last_bytes(compression: str, missing: int) -> None:
    """The directory stands at the end of many files: what it has lost is damage, not an unknown kind of picture."""
    whole = encode(scene(), "TIFF", compression=compression)
    assert status_of(whole) == OK
    assert status_of(whole[:-missing]) == CORRUPT


def test_a_bmp_that_uses_more_colours_than_it_has() -> None:
    """A palette that is said to be longer than its place would be read out of the pixels behind it."""
    blob = bytearray(encode(scene().quantize(16), "BMP"))
    (offset,) = struct.unpack_from("<I", blob, 10)
    assert offset == 14 + 40 + 16 * 4
    whole = decode(bytes(blob))
    blob[46:50] = bytes(4)  # "colours used": as many as 8 bits can tell
    assert (decode(bytes(blob)) == whole).all()
    blob[offset] = 16
    assert status_of(bytes(blob)) == CORRUPT
    assert status_of(bytes(blob) + b"\xff" * 2000) == CORRUPT


def test_a_png_with_two_headers() -> None:
    """Pillow believes the last, whose size nobody has looked at."""
    blob, other = (encode(flat("red", size=size), "PNG") for size in ((16, 12), (12, 16)))
    assert status_of(blob[:33] + other[8:33] + blob[33:]) == CORRUPT
    assert status_of(blob[:33] + blob[8:33] + blob[33:]) == CORRUPT


@pytest.mark.parametrize(("kind", "count"), [(3, 2), (4, 7), (8, 1), (9, 1), (2, 1)])
def test_a_tiff_whose_size_is_no_number(kind: int, count: int) -> None:
    """Several values, or a signed type: readers differ in what they take them for."""
    blob = encode(flat("red"), "TIFF")
    at = blob.index(struct.pack("<HH", 257, 4))
    assert status_of(blob[:at] + struct.pack("<HHI", 257, kind, count) + blob[at + 8 :]) == CORRUPT


def _strips(blob: bytes) -> list[tuple[int, int]]:
    """Where each strip of a TIFF is, and how long."""
    with Image.open(io.BytesIO(blob)) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        return list(zip(image.tag_v2[273], image.tag_v2[279], strict=True))


@pytest.mark.parametrize("method", ["tiff_deflate", "tiff_lzw", "packbits", "zstd", "lzma"])
@pytest.mark.parametrize("mode", ["RGB", "YCbCr"])
def test_strips_of_a_tiff_that_cannot_be_decoded(mode: str, method: str) -> None:
    """Pillow lets libtiff go on where colours are YCbCr; the rest of the picture would be green."""
    blob = encode(scene(160, 128).convert(mode), "TIFF", compression=method, tiffinfo={278: 16})
    assert status_of(blob) == OK
    for start, length in _strips(blob)[-4:]:
        blob = blob[:start] + bytes(length) + blob[start + length :]
    assert status_of(blob) == CORRUPT


@pytest.mark.parametrize("mode", ["RGB", "YCbCr", "L"])
def test_deflate_streams_of_a_tiff_that_do_not_end(mode: str) -> None:
    """libtiff stops when it has pixels enough, and looks at no checksum: zeros are codes like any other."""
    blob = encode(scene(160, 128).convert(mode), "TIFF", compression="tiff_adobe_deflate", tiffinfo={278: 16})
    for start, length in _strips(blob):
        blob = blob[: start + length // 2] + bytes(length - length // 2) + blob[start + length :]
    assert status_of(blob) == CORRUPT
    whole = encode(scene().convert(mode), "TIFF", compression="tiff_adobe_deflate")
    ((start, length),) = _strips(whole)
    assert status_of(whole[: start + length - 4] + bytes(4) + whole[start + length :]) == CORRUPT


@pytest.mark.parametrize("method", ["group3", "group4", "tiff_ccitt"])
def test_fax_codes_are_not_taken(method: str) -> None:
    """Any bytes are a picture to them, so nobody could tell a damaged one."""
    assert status_of(encode(flat(1, "1"), "TIFF", compression=method)) == UNSUPPORTED


@pytest.mark.parametrize("method", ["raw", "tiff_deflate"])
def test_a_tiff_that_lacks_strips(method: str) -> None:
    """A list that ends early, every strip of it whole: the rest would be black."""
    blob = encode(scene(160, 128), "TIFF", compression=method, tiffinfo={278: 16})
    for tag in (273, 279):
        at = blob.index(struct.pack("<HHI", tag, 4, 8))
        blob = blob[:at] + struct.pack("<HHI", tag, 4, 4) + blob[at + 8 :]
    assert status_of(blob) == CORRUPT


def _one_scan_a_component() -> tuple[bytes, list[bytes]]:
    """A JPEG in colour whose three components have a scan each: what precedes the scans, and these."""
    grey = [encode(picture, "JPEG", quality=90, optimize=False) for picture in scene(64, 64).split()]
    scans = [blob[blob.index(b"\xff\xda") : -2] for blob in grey]
    head = grey[0][: grey[0].index(b"\xff\xda")]
    frame = head.index(b"\xff\xc0")
    components = b"".join(bytes((i, 0x11, 0)) for i in (1, 2, 3))
    frame_header = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 64, 64, 3) + components
    head = head[:frame] + frame_header + head[frame + 2 + 11 :]
    return head, [scan[:5] + bytes((i,)) + scan[6:] for i, scan in enumerate(scans, 1)]


@pytest.mark.parametrize("kept", [(), (0,), (0, 1), (1, 2), (0, 0, 1), (2, 2, 2)])
def test_a_jpeg_without_the_scan_of_a_component(kept: tuple[int, ...]) -> None:
    """libjpeg takes zeros for it, which is another colour, and warns of nothing."""
    head, scans = _one_scan_a_component()
    assert status_of(head + b"".join(scans) + b"\xff\xd9") == OK
    assert status_of(head + b"".join(scans[i] for i in kept) + b"\xff\xd9") == CORRUPT


@pytest.mark.parametrize("announced", [(16, 16), (64, 96), (1, 1), (95, 64), (200, 200)])
def test_an_avif_whose_container_announces_another_size(announced: tuple[int, int]) -> None:
    """The pixels would be taken for those of a picture of that width; and a limit on pixels would be passed by."""
    blob = FILES["AVIF"]
    size = b"ispe" + struct.pack(">III", 0, 96, 64)
    assert size in blob
    assert status_of(blob.replace(size, b"ispe" + struct.pack(">III", 0, *announced))) == CORRUPT


def test_a_png_that_uses_more_colours_than_it_has() -> None:
    """They would be black."""
    palette = (b"PLTE", bytes(range(30)))
    assert status_of(png(4, 1, 8, 3, b"\0\0\1\2\x09", palette)) == OK
    assert status_of(png(4, 1, 8, 3, b"\0\0\1\2\x0a", palette)) == CORRUPT


def test_16_bits_in_separate_planes() -> None:
    """Pillow mixes up such a TIFF without a word, so it is refused."""
    wide = encode(Image.new("I;16", (8, 8), 40000), "TIFF", tiffinfo={284: 2})
    assert (
        status_of(wide.replace(struct.pack("<HHIHH", 284, 3, 1, 1, 0), struct.pack("<HHIHH", 284, 3, 1, 2, 0)))
        == UNSUPPORTED
    )
