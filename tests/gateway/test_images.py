"""Kind, size and completeness, read from the bytes alone."""

from __future__ import annotations

import struct
import zlib

import pytest
from PIL import Image, features

from gateway.errors import ImageProblem
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
    assert isinstance(problem, ImageProblem), problem
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
        assert isinstance(outcome, EncodedImage | ImageProblem)


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
    assert isinstance(problem, ImageProblem)
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
