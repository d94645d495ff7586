"""`python -m benchmarks.decoding`: what the worst pictures cost that are allowed.

Pictures of 64 megapixels, in files of at most 20 MiB, each decoded by a fresh process of the preprocessor: processor
time, and memory at its peak beyond what the process had before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.model_repository.picture_files import PREPROCESSOR, load_by_path
from tests.model_repository.test_guard import heavy
from tests.pictures import encode, noise
from tests.servers import ROOT

MAX_PIXELS = 64_000_000
MAX_BYTES = 20 << 20
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
    pool = guard.Guard(RECIPE, 224, max_pixels=MAX_PIXELS, cpu_seconds=600, memory=8 << 30)
    decoder = pool._take()
    decoder.ask(memoryview(b"GIF"), 1, 224)  # its imports are done
    base, start = peak(decoder._process.pid), cpu(decoder._process.pid)
    status, _ = decoder.ask(memoryview(file), MAX_PIXELS, 224)
    seconds, memory = cpu(decoder._process.pid) - start, peak(decoder._process.pid) - base
    decoder.end()
    return status, seconds, memory


def peak(pid: int) -> float:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    print(f"{'64 megapixels':<28} {'file MB':>8} {'status':>7} {'CPU s':>7} {'MiB':>7}")
    for name, make in worst():
        file = make()
        if len(file) > MAX_BYTES:
            print(f"{name:<28} {len(file) / 1e6:8.1f}  is larger than a file may be")
            continue
        status, seconds, memory = cost(file)
        print(f"{name:<28} {len(file) / 1e6:8.1f} {status:>7} {seconds:7.2f} {memory:7.0f}", flush=True)


if __name__ == "__main__":
    main()
