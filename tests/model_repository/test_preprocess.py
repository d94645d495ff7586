"""A recipe is followed to the pixel: the reference is Pillow with torchvision's sizes."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.model_repository.picture_files import (
    CORRUPT,
    PHOTOS,
    ROOT,
    Pixels,
    Recipe,
    exif,
    flat,
    imaging,
    scene,
)
from tests.pictures import encode

CLASSIFIER = json.loads((ROOT / "model_repository" / "classifier" / "preprocess.json").read_text())
RECIPES: dict[str, dict[str, Any]] = {
    "the classifier's": {},
    "bilinear": {"interpolation": "bilinear"},
    "squash, then crop": {"resize": "squash", "interpolation": "bilinear"},
    "squash": {"resize": "squash", "resize_to": 224, "crop": "none"},
    "odd sizes": {"resize_to": 97, "size": 64},
    "no border": {"resize_to": 64, "size": 64},
}
each_recipe = pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)


def recipe(**changes: Any) -> Recipe:
    return imaging.Recipe.from_json(json.dumps({**CLASSIFIER, **changes}))


def preprocess(blob: bytes, **changes: Any) -> Pixels:
    return imaging.preprocess(blob, recipe(**changes), max_pixels=1 << 26)


def reference(blob: bytes, **changes: Any) -> Pixels:
    """Upright, RGB, resized whole, cropped; as slow as it is plain."""
    r = recipe(**changes)
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(blob))).convert("RGB")
    width, height = image.size
    longer = int(r.resize_to * max(image.size) / min(image.size))
    if r.resize == "squash":
        width = height = r.resize_to
    elif width <= height:
        width, height = r.resize_to, longer
    else:
        width, height = longer, r.resize_to
    method = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}[r.interpolation]
    left, top = round((width - r.size) / 2), round((height - r.size) / 2)
    whole = image.resize((width, height), method)
    return np.asarray(whole.crop((left, top, left + r.size, top + r.size)))


def difference(a: Pixels, b: Pixels) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


@each_recipe
def test_photos_are_those_of_the_reference(changes: dict[str, Any]) -> None:
    """Real photos differ from Pillow's by at most 2 of 255 at any pixel."""
    if not PHOTOS.is_dir():
        pytest.skip("no shared/data/photos beside this checkout")
    paths = sorted(PHOTOS.glob("*.jpg"))[:: 20 if changes else 8]
    tall = [path for path in sorted(PHOTOS.glob("*.jpg")) if path.name.startswith("0546")]
    assert paths
    for path in (*paths, *tall):
        blob = path.read_bytes()
        assert difference(preprocess(blob, **changes), reference(blob, **changes)) <= 2, path.name


@each_recipe
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (97, 97), (224, 224), (257, 255), (30, 500), (900, 64), (400, 1100)])
def test_every_shape_is_that_of_the_reference(changes: dict[str, Any], size: tuple[int, int]) -> None:
    """Pictures smaller than the target, of its size, and much wider or taller."""
    blob = encode(scene(*size), "PNG")
    assert difference(preprocess(blob, **changes), reference(blob, **changes)) <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(90, 61), (61, 90), (40, 200)])
def test_a_turned_picture_is_resized_as_if_it_had_been_upright(orientation: int, size: tuple[int, int]) -> None:
    """Turning after the resize gives what turning before it would, odd crop borders included."""
    blob = encode(scene(*size), "JPEG", quality=95, exif=exif(orientation))
    for changes in ({}, {"resize_to": 97, "size": 64}):
        assert difference(preprocess(blob, **changes), reference(blob, **changes)) <= 2


@pytest.mark.parametrize("square", [1, 2])
def test_a_fine_checkerboard_is_antialiased(square: int) -> None:
    """448 × 448 with squares of one and two pixels, where shortcuts would show."""
    board = (np.indices((448, 448)) // square).sum(axis=0) % 2 * 255
    blob = encode(Image.fromarray(board.astype(np.uint8)), "PNG")
    for changes in ({}, {"resize": "squash", "resize_to": 224, "crop": "none"}):
        assert difference(preprocess(blob, **changes), reference(blob, **changes)) <= 2


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)])
def test_a_line_is_a_picture_too(size: tuple[int, int]) -> None:
    """One pixel wide or high: only the middle is resized, though the whole would have 300 million pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    got = preprocess(encode(Image.fromarray(pixels), "PNG"))
    assert got.shape == (224, 224, 3)
    line = got.swapaxes(0, 1) if size[0] == 1 else got
    assert (line == line[:1]).all()
    middle = pixels.reshape(-1, 3)[2500]  # pixels become 256 wide, so the crop begins 112 before this one's start
    assert np.abs(line[0, 223].astype(int) - middle).max() <= 90


def test_crop_and_squash_see_what_the_recipe_says() -> None:
    """Red outer quarters and a blue middle: a crop sees blue only, a squash sees both; lying or standing."""
    lying = flat("red", size=(400, 100))
    lying.paste("blue", (100, 0, 300, 100))
    for picture in (lying, lying.transpose(Image.Transpose.TRANSPOSE)):
        blob = encode(picture, "PNG")
        cropped = preprocess(blob)
        assert (cropped == (0, 0, 255)).all()
        squashed = preprocess(blob, resize="squash", resize_to=224, crop="none")
        assert (squashed == (255, 0, 0)).all(axis=2).mean() == pytest.approx(0.5, abs=0.03)


def test_bgr_is_rgb_in_the_other_order() -> None:
    """The colour order of the model, in contiguous memory."""
    blob = encode(scene(), "PNG")
    bgr = preprocess(blob, color="BGR")
    assert bgr.flags.c_contiguous
    assert (bgr[..., ::-1] == preprocess(blob)).all()


def through_jpeg(pixels: Pixels, quality: int) -> Pixels:
    """What a JPEG of Pillow's leaves of it."""
    return np.asarray(Image.open(io.BytesIO(encode(Image.fromarray(pixels), "JPEG", quality=quality))))


@each_recipe
@pytest.mark.parametrize("size", [(257, 255), (30, 500), (900, 64), (400, 1100), (1100, 400)])
def test_a_round_trip_is_that_of_the_reference(changes: dict[str, Any], size: tuple[int, int]) -> None:
    """With a `jpeg_quality` every pixel is the reference's own, turned pictures included: no difference is left that
    the JPEG could make larger."""
    for orientation in (1, 6, 7):
        blob = encode(scene(*size), "JPEG", quality=95, exif=exif(orientation))
        expected = through_jpeg(reference(blob, **changes), 75)
        assert difference(preprocess(blob, **changes, jpeg_quality=75), expected) == 0
    png = encode(scene(*size).convert("RGBA"), "PNG")
    white = encode(scene(*size), "PNG")
    assert difference(preprocess(png, **changes, jpeg_quality=20), through_jpeg(reference(white, **changes), 20)) == 0


def test_the_quality_is_that_of_the_recipe() -> None:
    """A low quality leaves less of a picture than a high one, and Pillow's default is 75; BGR comes after it."""
    blob = encode(scene(300, 300), "PNG")
    plain = preprocess(blob)
    found = {quality: preprocess(blob, jpeg_quality=quality) for quality in (5, 75, 100)}
    lost = {quality: np.abs(found[quality].astype(int) - plain).mean() for quality in found}
    assert lost[5] > 1.3 * lost[75]
    assert lost[75] > lost[100] > 0
    default = np.asarray(Image.open(io.BytesIO(encode(Image.fromarray(reference(blob)), "JPEG"))))
    assert (found[75] == default).all()
    assert (preprocess(blob, jpeg_quality=75, color="BGR") == default[..., ::-1]).all()


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1)])
def test_a_line_goes_through_a_jpeg_too(size: tuple[int, int]) -> None:
    """The whole of it would be 300 million pixels when it is resized: only the middle is."""
    line = preprocess(encode(flat("navy", size=size), "PNG"), jpeg_quality=75)
    assert line.shape == (224, 224, 3)
    assert np.abs(line.astype(int) - (0, 0, 128)).max() <= 2


def test_without_a_quality_nothing_changes() -> None:
    """An absent key and null are one recipe, and the file's hash is nobody's concern here."""
    blob = encode(scene(), "PNG")
    assert recipe(jpeg_quality=None) == recipe()
    assert (preprocess(blob, jpeg_quality=None) == preprocess(blob)).all()


def test_recipes_of_the_same_pixels_have_the_same_hash() -> None:
    """Mean, std and the way it is written do not count; every other key does."""
    part = {key: value for key, value in CLASSIFIER.items() if key not in ("mean", "std")}
    canonical = json.dumps(part, sort_keys=True, separators=(",", ":"))
    assert recipe().pixels_sha256 == hashlib.sha256(canonical.encode()).hexdigest()
    assert recipe(mean=[1, 2, 3], std=[4, 5, 6], jpeg_quality=None).pixels_sha256 == recipe().pixels_sha256
    others: list[dict[str, Any]] = [{}, {"resize": "squash"}, {"resize_to": 300}, {"interpolation": "bilinear"}]
    others += [{"size": 200}, {"color": "BGR"}, {"jpeg_quality": 75}, {"jpeg_quality": 76}]
    assert len({recipe(**changes).pixels_sha256 for changes in others}) == 8


def test_a_memoryview_is_as_good_as_bytes() -> None:
    """Triton hands over views of its own memory; the bytes behind the view are not looked at."""
    blob = encode(scene(), "JPEG")
    view = memoryview(blob + b"\xff\xd9")
    assert (imaging.preprocess(view[: len(blob)], recipe(), max_pixels=1 << 20) == preprocess(blob)).all()
    with pytest.raises(imaging.ImageError) as caught:
        imaging.preprocess(view[: len(blob) - 2], recipe(), max_pixels=1 << 20)
    assert vars(caught.value)["status"] == CORRUPT


def test_the_classifiers_recipe_is_read() -> None:
    """All keys, with their types."""
    r = imaging.Recipe.from_json((ROOT / "model_repository" / "classifier" / "preprocess.json").read_bytes())
    assert (r.resize, r.resize_to, r.interpolation, r.crop, r.size, r.color) == (
        *("shorter", 256, "bicubic", "center", 224, "RGB"),
    )
    assert (r.mean, r.std) == ((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resize": "longest"}, "resize must be one of shorter, squash, not 'longest'"),
        ({"interpolation": "lanczos"}, "interpolation must be one of bicubic, bilinear"),
        ({"crop": None}, "crop must be one of center, none, not None"),
        ({"color": "rgb"}, "color must be one of RGB, BGR"),
        ({"size": 224.0}, "size must be a whole number from 1 to 4096, not 224.0"),
        ({"size": True}, "size must be a whole number"),
        ({"resize_to": 0}, "resize_to must be a whole number"),
        ({"size": 300}, "size must not be larger than resize_to"),
        ({"crop": "none"}, 'crop "none" needs resize "squash" and resize_to equal to size'),
        ({"mean": [1, 2]}, "mean must be a list of 3 numbers"),
        ({"mean": [1, 2, float("nan")]}, "mean must be a list of 3 numbers"),
        ({"std": [1, "2", 3]}, "std must be a list of 3 numbers"),
        ({"std": [1, 0, 1]}, "std must be above 0"),
        ({"jpeg": 90, "a": 1}, "unknown keys: a, jpeg"),
        ({"jpeg_quality": 0}, "jpeg_quality must be a whole number from 1 to 100, or null, not 0"),
        ({"jpeg_quality": 101}, "jpeg_quality must be"),
        ({"jpeg_quality": 75.0}, "jpeg_quality must be"),
        ({"jpeg_quality": True}, "jpeg_quality must be"),
        ({"jpeg_quality": "75"}, "jpeg_quality must be"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_reason(changes: dict[str, Any], words: str) -> None:
    """Unknown keys and bad values are named."""
    with pytest.raises(ValueError, match=words):
        recipe(**changes)


def test_a_recipe_that_is_incomplete_or_no_object_is_refused() -> None:
    """Missing keys are named; a list is no recipe; broken JSON is a ValueError too."""
    with pytest.raises(ValueError, match="lacks keys: crop, size"):
        imaging.Recipe.from_json(json.dumps({k: v for k, v in CLASSIFIER.items() if k not in ("size", "crop")}))
    for text in ("[]", "{"):
        with pytest.raises(ValueError, match=r"one object|Expecting"):
            imaging.Recipe.from_json(text)
