"""Every format and every kind of pixel that is taken means what a viewer shows."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.model_repository.picture_files import (
    CORRUPT,
    UNSUPPORTED,
    colour_of,
    decode,
    exif,
    flat,
    png,
    scene,
    status_of,
    tiff,
)
from tests.pictures import encode

LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}


def near(blob: bytes, colour: tuple[int, ...], by: int = 1) -> bool:
    return bool(np.abs(np.subtract(colour_of(blob), colour)).max() <= by)


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_every_format_keeps_the_order_of_channels(kind: str, colour: tuple[int, int, int]) -> None:
    """Solid red, green and blue come out as red, green and blue."""
    assert near(encode(flat(colour), kind, quality=100), colour, 4)


@pytest.mark.parametrize("kind", list(LOSSLESS))
def test_lossless_formats_give_the_very_pixels(kind: str) -> None:
    """A picture in a lossless format is decoded bit by bit."""
    picture = scene(33, 21)
    pixels = decode(encode(picture, kind, **LOSSLESS[kind]))
    assert pixels.shape == (21, 33, 3)
    assert pixels.dtype == np.uint8
    assert (pixels == np.asarray(picture)).all()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 5}])
def test_jpeg_is_what_pillow_makes_of_it(options: dict[str, object]) -> None:
    """Baseline, progressive and every common subsampling equal Pillow's decoding."""
    blob = encode(scene(), "JPEG", **options)
    assert (decode(blob) == np.asarray(Image.open(io.BytesIO(blob)))).all()


def test_jpeg_with_a_rare_subsampling_is_decoded() -> None:
    """4:1:0, which TurboJPEG does not know, goes another way; without its end it is corrupt all the same."""
    blob = bytearray(encode(flat((128, 128, 128), size=(64, 64)), "JPEG", subsampling=0))
    blob[blob.index(b"\xff\xc0") + 11] = 0x42  # luma sampled 4 × 2
    scan = blob.index(b"\xff\xda")
    for component in range(3):
        blob[scan + 6 + 2 * component] = 0  # one Huffman table for all
    blob[scan + 14 :] = b"\x28\xa2\x8a" * 20  # 8 units of 10 blocks, each 00 (no difference) and 1010 (no more)
    assert colour_of(bytes(blob) + b"\xff\xd9") == [128, 128, 128]
    assert status_of(bytes(blob)) == CORRUPT


def test_grey_jpeg_has_equal_channels() -> None:
    """A one-channel JPEG becomes R=G=B."""
    assert colour_of(encode(flat(77, "L"), "JPEG")) == [77, 77, 77]


def test_cmyk_jpeg_is_not_negative() -> None:
    """Full magenta and yellow is red, with Adobe's marker and without it; YCCK is converted."""
    blob = encode(flat((0, 255, 255, 0), "CMYK"), "JPEG", quality=100)
    at = blob.index(b"\xff\xee")
    bare = blob[:at] + blob[at + 2 + int.from_bytes(blob[at + 2 : at + 4], "big") :]
    assert near(blob, (255, 0, 0))
    assert near(bare, (255, 0, 0))
    blob = encode(flat((200, 127, 127, 0), "CMYK"), "JPEG", quality=100)  # as YCC: grey
    at = blob.index(b"Adobe") + 11
    assert near(blob[:at] + b"\x02" + blob[at + 1 :], (200, 200, 200))


def test_cmyk_tiff_is_not_negative() -> None:
    """Full cyan is (0, 255, 255)."""
    assert colour_of(encode(flat((255, 0, 0, 0), "CMYK"), "TIFF")) == [0, 255, 255]


def test_mpo_gives_its_first_picture() -> None:
    """Of the pictures of a stereo camera the first one counts."""
    blob = encode(flat("red"), "MPO", save_all=True, append_images=[flat("blue")])
    assert near(blob, (254, 0, 0))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF", "TIFF"])
def test_an_animation_gives_its_first_frame(kind: str) -> None:
    """Of red, green and blue frames, red counts."""
    frames = [flat(c, size=(32, 32)) for c in ("lime", "blue")]
    blob = encode(flat("red", size=(32, 32)), kind, save_all=True, append_images=frames, quality=100)
    assert near(blob, (255, 0, 0), 4)


def test_palettes_grey_and_one_bit() -> None:
    """Palette colours, not indices; 1-bit white is 255; 2 and 4 bits reach from 0 to 255."""
    assert colour_of(encode(flat((10, 200, 30)).quantize(4), "PNG")) == [10, 200, 30]
    assert colour_of(encode(flat(1, "1"), "PNG")) == [255, 255, 255]
    assert colour_of(encode(flat(1, "1"), "TIFF", compression="packbits")) == [255, 255, 255]
    assert colour_of(encode(flat(1, "1"), "BMP")) == [255, 255, 255]
    assert decode(png(4, 1, 2, 0, b"\0\x1b"))[0, :, 0].tolist() == [0, 85, 170, 255]
    assert decode(png(2, 1, 4, 0, b"\0\x0f"))[0, :, 0].tolist() == [0, 255]


def test_sixteen_bits_are_shifted_by_eight() -> None:
    """40000 is 156 in grey and RGB, with and without alpha, as PNG and TIFF."""
    wide = struct.pack(">H", 40000)
    opaque = b"\xff\xff"
    assert colour_of(png(1, 1, 16, 0, b"\0" + wide)) == [156, 156, 156]
    assert colour_of(png(1, 1, 16, 2, b"\0" + wide * 3)) == [156, 156, 156]
    assert colour_of(png(1, 1, 16, 4, b"\0" + wide + opaque)) == [156, 156, 156]
    assert colour_of(png(1, 1, 16, 6, b"\0" + wide * 3 + opaque)) == [156, 156, 156]
    assert colour_of(encode(Image.fromarray(np.full((3, 3), 40000, np.uint16)), "TIFF")) == [156, 156, 156]
    little = struct.pack("<H", 40000)
    assert colour_of(tiff(1, 1, little * 3, {258: (16, 16, 16), 262: 2, 277: 3})) == [156, 156, 156]
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    assert (decode(encode(Image.fromarray(ramp), "PNG"))[..., 0] == ramp >> 8).all()


def test_tiff_grey_that_counts_from_white_or_has_twelve_bits() -> None:
    """Photometric 0 means that 0 is white; 12 bits are scaled by a shift of 4."""
    assert colour_of(tiff(1, 1, struct.pack("<H", 0), {258: 16, 262: 0})) == [255, 255, 255]
    assert colour_of(tiff(2, 1, b"\xff\xff\xff", {258: 12})) == [255, 255, 255]
    assert colour_of(tiff(1, 1, b"\x00", {258: 8, 262: 0})) == [255, 255, 255]


def test_numbers_without_a_brightness_are_unsupported() -> None:
    """Float and 32-bit integer TIFFs say nothing about what is white."""
    assert status_of(encode(flat(0.5, "F"), "TIFF")) == UNSUPPORTED
    assert status_of(encode(flat(70000, "I"), "TIFF")) == UNSUPPORTED
    assert status_of(tiff(1, 1, bytes(12), {258: (32, 32, 32), 262: 2, 277: 3, 339: (3, 3, 3)})) == UNSUPPORTED


ALPHA = {"PNG": {}, "WEBP": {"lossless": True, "exact": True}, "TIFF": {}}


@pytest.mark.parametrize("kind", list(ALPHA))
def test_alpha_is_composited_on_white(kind: str) -> None:
    """Half red on white is (255, 127, 127); the colour under full transparency never shows."""
    assert colour_of(encode(flat((255, 0, 0, 128), "RGBA"), kind, **ALPHA[kind])) == [255, 127, 127]
    assert colour_of(encode(flat((255, 0, 0, 0), "RGBA"), kind, **ALPHA[kind])) == [255, 255, 255]
    assert colour_of(encode(flat((9, 8, 7, 255), "RGBA"), kind, **ALPHA[kind])) == [9, 8, 7]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_alpha_of_large_pictures(mode: str) -> None:
    """They are composited in strips: every row comes out once, in its place."""
    grey = np.arange(2100, dtype=np.int64)[:, None] * 7 % 256
    alpha = np.arange(2000)[None, :] % 2 * 255
    picture = Image.fromarray(np.broadcast_to(grey, (2100, 2000)).astype(np.uint8))
    picture.putalpha(Image.fromarray(np.broadcast_to(alpha, (2100, 2000)).astype(np.uint8)))
    if mode == "PA":
        picture = picture.convert("L").quantize(256)
        key = int(np.asarray(picture)[50, 1])
        blob = encode(picture, "PNG", compress_level=1, transparency=key)
        expected = np.where(grey == grey[50], 255, np.broadcast_to(grey, (2100, 2000)))
    else:
        blob = encode(picture.convert(mode), "PNG", compress_level=1)
        expected = np.where(alpha == 0, 255, grey)
    assert (decode(blob, 5_000_000) == expected[..., None]).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_what_a_small_first_frame_leaves_open_is_white(kind: str) -> None:
    """Whatever colour the file or the library has for it; the frame itself stays where it is."""
    first, second = flat("red", size=(40, 30)), flat("blue", size=(40, 30))
    blob = bytearray(encode(first, kind, save_all=True, append_images=[second], lossless=True))
    if kind == "GIF":
        struct.pack_into("<HH", blob, 6, 60, 50)
        struct.pack_into("<HH", blob, blob.index(b",\0\0\0\0") + 1, 10, 20)
    else:
        assert blob[12:16] == b"VP8X"
        blob[24:30] = (59).to_bytes(3, "little") + (49).to_bytes(3, "little")
        at = blob.index(b"ANMF") + 8
        blob[at : at + 6] = (5).to_bytes(3, "little") + (10).to_bytes(3, "little")
    expected = np.full((50, 60, 3), 255)
    expected[20:50, 10:50] = (255, 0, 0)
    assert np.abs(decode(bytes(blob)).astype(int) - expected).max() <= 1


def test_only_exif_turns_a_tiff() -> None:
    """As in every other format, XMP does not."""
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><tiff:Orientation>6</tiff:Orientation></x:xmpmeta>'
    assert decode(encode(flat("red", size=(30, 20)), "TIFF", tiffinfo={700: xmp})).shape == (20, 30, 3)


def test_alpha_of_grey_palette_avif_and_gif() -> None:
    """LA, tRNS of a palette (one colour and a table), a lossy AVIF and a transparent GIF are put on white."""
    assert colour_of(encode(flat((0, 128), "LA"), "PNG")) == [127, 127, 127]
    palette = flat(0, "P")
    palette.putpalette([255, 0, 0, 0, 0, 255])
    assert colour_of(encode(palette, "PNG", transparency=0)) == [255, 255, 255]
    assert colour_of(encode(palette, "PNG", transparency=b"\x80\xff")) == [255, 127, 127]
    assert colour_of(encode(palette, "GIF", transparency=0)) == [255, 255, 255]
    assert colour_of(encode(flat((255, 0, 0, 0), "RGBA"), "AVIF")) == [255, 255, 255]


@pytest.mark.parametrize(
    ("depth", "colour_type", "row", "key", "want"),
    [
        (1, 0, b"\x40", b"\0\1", [0, 255]),
        (2, 0, b"\x70", b"\0\1", [255, 255]),
        (4, 0, b"\x5f", b"\0\x05", [255, 255]),
        (8, 0, b"\x05\x06", b"\0\x05", [255, 6]),
        (16, 0, b"\x01\x02\x01\x03", b"\x01\x02", [255, 1]),
        (8, 2, b"\1\2\3\1\2\4", b"\0\1\0\2\0\3", [255, 1]),
        (16, 2, b"\x01\x02" * 3 + b"\x01\x03" * 3, b"\x01\x02" * 3, [255, 1]),
    ],
)
def test_a_transparent_colour_is_white_at_every_depth(
    depth: int, colour_type: int, row: bytes, key: bytes, want: list[int]
) -> None:
    """tRNS names one colour, in the depth of the file; that colour alone becomes white."""
    assert decode(png(2, 1, depth, colour_type, b"\0" + row, (b"tRNS", key)))[0, :, 0].tolist() == want


UPRIGHT = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,  # stored turned the other way
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
    0: None,
    9: None,
}


@pytest.mark.parametrize("orientation", list(UPRIGHT))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_orientation_is_applied_once(kind: str, orientation: int) -> None:
    """All eight orientations of one picture are that picture; 0 and 9 mean none."""
    upright = flat("red", size=(32, 48))
    upright.paste("blue", (0, 0, 16, 24))
    undo = UPRIGHT[orientation]
    stored = upright if undo is None else upright.transpose(undo)
    options = {"quality": 100, "subsampling": "4:4:4", "lossless": True, "exif": exif(orientation)}
    pixels = decode(encode(stored, kind, **options))
    assert pixels.shape == (48, 32, 3)
    assert np.abs(pixels.astype(int) - np.asarray(upright)).max() <= 12


def test_exif_in_the_way_of_imagemagick_is_read() -> None:
    """A PNG with EXIF as hexadecimal text is turned like any other."""
    block = exif(6).tobytes()
    text = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
    blob = png(2, 1, 8, 0, b"\0\x00\xff", (b"tEXt", b"Raw profile type exif\0" + text))
    assert decode(blob)[..., 0].tolist() == [[0], [255]]


@pytest.mark.parametrize(
    "broken", [b"", b"II", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff\x01\x12", b"nonsense"]
)
def test_broken_exif_is_ignored(broken: bytes) -> None:
    """EXIF that cannot be read does not cost the picture."""
    picture = flat((128, 128, 128))
    for kind in ("JPEG", "PNG", "WEBP"):
        assert colour_of(encode(picture, kind, exif=b"Exif\0\0" + broken)) == [128, 128, 128]
