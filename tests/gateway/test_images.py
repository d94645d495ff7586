"""Kind, size and completeness, read from the bytes alone."""

from __future__ import annotations

import struct
import zlib

import pytest
from PIL import Image, features

from gateway.errors import ItemProblem
from gateway.images import MAX_SEGMENTS, EncodedImage, ImageLimits, inspect
from tests.pictures import RED, encode, noise, solid

LIMITS = ImageLimits(max_file_bytes=1_000_000, max_pixels=1_000_000)

TAKEN = {
    "JPEG": encode(noise(40, 30), "JPEG"),
    "JPEG, progressive": encode(noise(40, 30), "JPEG", progressive=True),
    "JPEG, CMYK": encode(solid(RED, (40, 30)).convert("CMYK"), "JPEG"),
    "PNG": encode(noise(40, 30), "PNG"),
    "WebP, lossy": encode(noise(40, 30), "WEBP"),
    "WebP, lossless": encode(noise(40, 30), "WEBP", lossless=True),
    "WebP, extended": encode(noise(40, 30), "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
    "GIF": encode(noise(40, 30), "GIF"),
    "BMP": encode(noise(40, 30), "BMP"),
    "TIFF": encode(noise(40, 30), "TIFF"),
    "TIFF, big-endian": encode(Image.new("I;16B", (40, 30)), "TIFF"),
}
if features.check("avif"):
    TAKEN["AVIF"] = encode(noise(40, 30), "AVIF")


def code(data: bytes, limits: ImageLimits = LIMITS) -> str:
    problem = inspect(data, limits)
    assert isinstance(problem, ItemProblem), problem
    return problem.code


@pytest.mark.parametrize("name", TAKEN)
def test_kind_and_size(name: str) -> None:
    """Every kind is told by its bytes, and its size in pixels read from the header."""
    image = inspect(TAKEN[name], LIMITS)
    assert isinstance(image, EncodedImage)
    assert (image.kind, image.width, image.height) == (name.split(",")[0], 40, 30)


@pytest.mark.parametrize("name", TAKEN)
def test_never_raises_on_a_cut_file(name: str) -> None:
    """A file cut at any byte is an image or a problem, never an exception."""
    for end in range(len(TAKEN[name])):
        outcome = inspect(TAKEN[name][:end], LIMITS)
        assert isinstance(outcome, EncodedImage | ItemProblem)


@pytest.mark.parametrize("name", ["JPEG", "JPEG, progressive", "JPEG, CMYK", "PNG", "WebP, lossy", "WebP, lossless"])
def test_a_cut_file_is_corrupt(name: str) -> None:
    """A JPEG, PNG or WebP that ends early is found out here, also when zeros stand where its end was."""
    whole = TAKEN[name]
    for end in (len(whole) // 2, len(whole) - 2):
        assert code(whole[:end]) == "corrupt_image"
    if not name.startswith("WebP"):
        assert code(whole[: len(whole) // 2] + bytes(50_000)) == "corrupt_image"


@pytest.mark.parametrize("name", TAKEN)
def test_bytes_after_the_end_do_not_matter(name: str) -> None:
    """A whole file with something behind it is a whole file."""
    assert isinstance(inspect(TAKEN[name] + bytes(5000), LIMITS), EncodedImage)


def test_a_thumbnail_is_not_the_picture() -> None:
    """The end of an embedded thumbnail is not the end of the JPEG around it."""
    thumbnail = encode(noise(8, 8), "JPEG")
    whole = encode(noise(40, 30), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    image = inspect(whole[:2] + segment + whole[2:], LIMITS)
    assert isinstance(image, EncodedImage)
    assert (image.width, image.height) == (40, 30)
    assert code((whole[:2] + segment + whole[2:])[:-2]) == "corrupt_image"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "hei"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "iso media"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg"),
        (b"<?xml version='1.0'?>\n<svg/>", "svg"),
        (b"  <!DOCTYPE html><title>x</title>", "html"),
        (b"%PDF-1.7\n", "pdf"),
        (b"PK\x03\x04aaaa", "zip"),
        (b"8BPS\0\1", "psd"),
        (b"\xff", "not a picture"),
        (bytes(5000), "not a picture"),
        (b"words and nothing else", "not a picture"),
    ],
)
def test_other_files_are_unsupported_and_named(data: bytes, named: str) -> None:
    """What we do not take is refused with a message that says what was seen."""
    problem = inspect(data, LIMITS)
    assert isinstance(problem, ItemProblem)
    assert problem.code == "unsupported_image"
    assert named in problem.message


def test_the_empty_file() -> None:
    """No bytes are an error of their own."""
    assert code(b"") == "empty_image"


def test_limits() -> None:
    """Bytes and pixels are capped; the pixels are those of the header, whatever stands behind it."""
    assert code(TAKEN["PNG"], ImageLimits(100, 1_000_000)) == "file_too_large"
    assert code(TAKEN["PNG"], ImageLimits(1_000_000, 40 * 30 - 1)) == "image_too_large"
    assert isinstance(inspect(TAKEN["PNG"], ImageLimits(1_000_000, 40 * 30)), EncodedImage)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert code(bomb) == "image_too_large"


def test_a_file_of_millions_of_segments_is_refused_early() -> None:
    """Walking through them would hold up every other request."""
    limits = ImageLimits(max_file_bytes=50_000_000, max_pixels=1_000_000)
    jpeg, png = TAKEN["JPEG"], TAKEN["PNG"]
    assert code(jpeg[:2] + b"\xff\xfe\0\2" * (MAX_SEGMENTS + 1) + jpeg[2:], limits) == "corrupt_image"
    assert code(png[:33] + b"\0\0\0\0teXt\0\0\0\0" * (MAX_SEGMENTS + 1) + png[33:], limits) == "corrupt_image"
    assert isinstance(inspect(jpeg[:2] + b"\xff\xfe\0\2" * 1000 + jpeg[2:], limits), EncodedImage)


@pytest.mark.parametrize("head", [b"BM", b"BMW is a car, and a file of text may begin with it"])
def test_two_letters_are_no_bmp(head: bytes) -> None:
    """Text that begins with BM is not taken for a picture of some absurd size."""
    assert code(head) == "unsupported_image"


def test_a_png_has_one_header() -> None:
    """A second one, which some decoders believe, might promise fewer pixels than the first, or more."""
    png = TAKEN["PNG"]
    assert code(png[:33] + png[8:]) == "corrupt_image"


def test_a_side_has_a_limit_of_its_own() -> None:
    """A picture of one row costs far more than its pixels say."""
    fits, too_wide = (encode(Image.new("1", (width, 1)), "PNG") for width in (65_535, 65_536))
    assert isinstance(inspect(fits, LIMITS), EncodedImage)
    assert code(too_wide) == "image_too_large"


def test_a_gif_is_as_large_as_its_first_picture() -> None:
    """Where that reaches beyond the canvas, the canvas grows; extensions before it do not matter."""
    gif = bytearray(encode(solid(RED, (40, 30)), "GIF"))
    gif[6:10] = struct.pack("<HH", 8, 50)
    start = gif.index(b",\0\0\0\0")
    for extension in (b"", b"\x21\xfe\x02ab\x01c\x00"):
        image = inspect(bytes(gif[:start] + extension + gif[start:]), LIMITS)
        assert isinstance(image, EncodedImage)
        assert (image.width, image.height) == (40, 50)
    assert code(bytes(gif[:start])) == "corrupt_image"
    assert code(bytes(gif[:start] + b"\x21\xfe" + b"\x01c" * MAX_SEGMENTS + b"\0" + gif[start:])) == "corrupt_image"


def test_the_first_size_of_a_tiff_counts() -> None:
    """As decoders have it; a size of several values, or of a signed type, is none."""
    tiff = TAKEN["TIFF"]
    width = struct.pack("<HHII", 256, 4, 1, 40)
    at = tiff.index(width)
    (start,) = struct.unpack_from("<I", tiff, 4)
    (entries,) = struct.unpack_from("<H", tiff, start)

    def put(entry: bytes) -> bytes:
        return tiff[:start] + struct.pack("<H", entries + 1) + tiff[start + 2 : at] + entry + tiff[at:]

    image = inspect(put(struct.pack("<HHII", 256, 3, 1, 20)), LIMITS)
    assert isinstance(image, EncodedImage)
    assert image.width == 20
    assert code(put(struct.pack("<HHII", 256, 3, 7, 20))) == "corrupt_image"
    assert code(put(struct.pack("<HHII", 256, 9, 1, 20))) == "corrupt_image"


@pytest.mark.skipif("AVIF" not in TAKEN, reason="this Pillow writes no AVIF")
def test_an_avif_is_known_by_any_of_its_brands_and_measured_by_its_meta_box() -> None:
    """Another first brand, other boxes before it, the properties' name elsewhere: none hides or changes them."""
    avif = TAKEN["AVIF"]
    (length,) = struct.unpack_from(">I", avif)
    media = struct.pack(">I4s", 100_008, b"mdat") + b"\0\0\0\x14ispe" * 12_500
    for variant in (
        avif.replace(b"ftypavif", b"ftypmif1", 1),
        avif[:length] + media + avif[length:],
        avif[:length] + struct.pack(">I4sQ", 1, b"free", 24) + b"\0\0\0\x14ispe" + avif[length:],
    ):
        image = inspect(variant, LIMITS)
        assert isinstance(image, EncodedImage)
        assert (image.kind, image.width, image.height) == ("AVIF", 40, 30)
    endless = struct.pack(">I4sQ", 1, b"free", (1 << 64) - 1)
    assert code(avif[:length] + endless + avif[length:]) == "corrupt_image"
    assert code(avif[:length] + b"\0\0\0\x08free" * (MAX_SEGMENTS + 1) + avif[length:]) == "corrupt_image"
