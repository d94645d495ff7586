"""`python -m benchmarks.decoding`: what the worst allowed pictures cost, and what scaled decoding would save.

First pictures of 64 megapixels, in files of at most 20 MiB, each decoded by a fresh process of the preprocessor:
processor time, and memory at its peak beyond what the process had before.

Then JPEGs of 12 megapixels. Milliseconds of the reference pipeline (Pillow), of ours, and of libjpeg-turbo alone at
full size and by DCT scaling at 1/2, 1/4 and 1/8. And how far the 341 × 256 pixels that are made from each of the
scaled ones are from those that are made from the full decode, at most, of 255.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tests.model_repository.picture_files import PREPROCESSOR, imaging, load_by_path
from tests.model_repository.test_guard import heavy
from tests.pictures import encode, noise
from tests.servers import ROOT

MAX_PIXELS = 64_000_000
MAX_BYTES = 20 << 20
PHOTO = "cat.jpg"
RECIPE = (ROOT / "model_repository" / "classifier" / "preprocess.json").read_text()
guard = load_by_path(PREPROCESSOR / "guard.py", "tidegate_guard")


def tiled(width: int, height: int, channels: int) -> NDArray[np.uint8]:
    """Noise that repeats every 64 pixels: hard for a decoder, easy for what packs it."""
    tile = np.random.default_rng(0).integers(0, 256, (64, 64, channels), dtype=np.uint8)
    return np.tile(tile, (-(-height // 64), -(-width // 64), 1))[:height, :width]


def worst() -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names, and how to make the files; one after the other, as each takes a gigabyte to make."""
    side = 8000

    def rgb() -> Image.Image:
        return Image.fromarray(tiled(side, side, 3))

    def rgba() -> Image.Image:
        return Image.fromarray(tiled(side, side, 4))

    def grey16() -> Image.Image:
        return Image.fromarray(np.ascontiguousarray(tiled(side, side, 2)).view(np.uint16)[..., 0])

    yield "JPEG, one scan", lambda: encode(rgb(), "JPEG", quality=30)
    yield "JPEG, progressive", lambda: encode(rgb(), "JPEG", quality=30, progressive=True)
    yield "PNG, RGB", lambda: encode(rgb(), "PNG", compress_level=1)
    yield "PNG, with alpha", lambda: encode(rgba(), "PNG", compress_level=1)
    yield "PNG, with alpha, interlaced", lambda: heavy(side)
    yield "PNG, 16 bits grey", lambda: encode(grey16(), "PNG", compress_level=1)
    yield "PNG, palette with alpha", lambda: encode(rgba().quantize(255), "PNG", compress_level=1, transparency=3)
    yield "PNG, 65535 high", lambda: encode(Image.fromarray(tiled(976, 65535, 4)), "PNG", compress_level=1)
    yield "GIF", lambda: encode(rgb().quantize(64), "GIF")
    yield "BMP, 1 bit", lambda: encode(rgb().convert("1"), "BMP")
    yield "TIFF, deflate, with alpha", lambda: encode(rgba(), "TIFF", compression="tiff_deflate")
    yield "TIFF, deflate, 16 bits", lambda: encode(grey16(), "TIFF", compression="tiff_deflate")
    yield "WebP, noise", lambda: encode(noise(side, side), "WEBP", quality=10, method=0)
    yield "WebP, lossless, with alpha", lambda: encode(rgba(), "WEBP", lossless=True, quality=0, method=0)
    yield "AVIF, noise", lambda: encode(noise(side, side), "AVIF", quality=35, speed=10)


def cost(file: bytes) -> tuple[int, float, float]:
    """Status, seconds of processor time, and MiB of memory."""
    pool = guard.Guard(RECIPE, 224, cpu_seconds=600, memory=8 << 30)
    decoder = pool._take(float("inf"))
    decoder.ask(memoryview(b"GIF"), 1, 224)  # its imports are done
    base, start = peak(decoder._process.pid), cpu(decoder._process.pid)
    status, _ = decoder.ask(memoryview(file), MAX_PIXELS, 224)
    seconds, memory = cpu(decoder._process.pid) - start, peak(decoder._process.pid) - base
    decoder.end()
    pool.close()
    return status, seconds, memory


def peak(pid: int) -> float:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def large_jpegs() -> Iterator[tuple[str, bytes]]:
    """12 megapixels: as a phone takes them, a page of text, and what is hardest for DCT scaling."""
    size = (4000, 3000)
    photo = Image.open(ROOT / "examples" / "photos" / PHOTO).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(0).normal(0, 3, (3000, 4000, 1))
    grainy = Image.fromarray((np.asarray(photo) + grain).clip(0, 255).astype(np.uint8))
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    for y in range(0, 3000, 12):
        draw.text((0, y), "The quick brown fox jumps over the lazy dog. " * 30, fill="darkred")
    checks = Image.fromarray(
        np.tile(np.array([[[255, 0, 0], [0, 255, 0]], [[0, 255, 0], [255, 0, 0]]], np.uint8), (1500, 2000, 1))
    )
    for name, picture in {
        "photo": photo,
        "photo with grain": grainy,
        "page of text": page,
        "checkerboard": checks,
    }.items():
        yield name, encode(picture, "JPEG", quality=88)
    yield "photo, progressive", encode(grainy, "JPEG", quality=88, progressive=True)


def scaling() -> None:
    print(
        f"\n{'12 megapixels':<20} {'MB':>5} {'Pillow':>7} {'ours':>6} {'1/1':>6} {'1/2':>6} {'1/4':>6} {'1/8':>6}"
        "   off by"
    )
    recipe = imaging.Recipe.from_json(RECIPE)
    for name, file in large_jpegs():
        full, *scaled = (
            partial(simplejpeg.decode_jpeg, file, min_height=3000 // n, min_width=4000 // n) for n in (1, 2, 4, 8)
        )
        ours = partial(imaging.preprocess, file, recipe, max_pixels=MAX_PIXELS)
        runs: list[Callable[[], object]] = [partial(small, file), ours, full, *scaled]
        took = [milliseconds(run) for run in runs]
        right = to_256(full())
        off = [int(np.abs(to_256(run()) - right).max()) for run in scaled]
        print(
            f"{name:<20} {len(file) / 1e6:5.1f} {took[0]:7.1f}",
            *(f"{t:6.1f}" for t in took[1:]),
            f"  {off}",
            flush=True,
        )


def small(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB").resize((341, 256), Image.Resampling.BICUBIC)


def to_256(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.asarray(Image.fromarray(pixels).resize((341, 256), Image.Resampling.BICUBIC)).astype(np.int64)


def milliseconds(run: Callable[[], object]) -> float:
    """Of processor time, at best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best * 1000


def main() -> None:
    print(f"{'64 megapixels':<28} {'file MB':>8} {'status':>7} {'CPU s':>7} {'MiB':>7}")
    for name, make in worst():
        file = make()
        if len(file) > MAX_BYTES:
            print(f"{name:<28} {len(file) / 1e6:8.1f}  is larger than a file may be")
            continue
        status, seconds, memory = cost(file)
        print(f"{name:<28} {len(file) / 1e6:8.1f} {status:>7} {seconds:7.2f} {memory:7.0f}", flush=True)
    scaling()


if __name__ == "__main__":
    main()
