"""Costly pictures are decoded in processes that can be ended."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.model_repository.picture_files import (
    CORRUPT,
    MAX_PIXELS,
    OK,
    PREPROCESSOR,
    TOO_LARGE,
    exif,
    imaging,
    load_by_path,
    png_chunk,
    scene,
)
from tests.pictures import encode

RECIPE = (PREPROCESSOR.parents[1] / "classifier" / "preprocess.json").read_text()
LARGE = 10_000_000
KINDS = ("PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG")

guard = load_by_path(PREPROCESSOR / "guard.py", "guard_under_test")


@contextmanager
def guarding(cpu_seconds: float = 20, memory: int = 1 << 30, stuck_s: float = 60) -> Iterator[Any]:
    pool = guard.Guard(RECIPE, 224, cpu_seconds=cpu_seconds, memory=memory, stuck_s=stuck_s)
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    """Decoders with limits that no small picture meets."""
    with guarding() as pool:
        yield pool


def answer_of(pool: Any, file: bytes, max_pixels: int = MAX_PIXELS) -> Any:
    return pool.preprocess(memoryview(file), max_pixels)


def status_of(pool: Any, file: bytes, max_pixels: int = MAX_PIXELS) -> int:
    return int(answer_of(pool, file, max_pixels)[0])


def heavy(side: int) -> bytes:
    """An interlaced PNG with alpha, side × side pixels: of what is allowed, the slowest for its size."""
    idat = zlib.compressobj(1)
    coded = []
    row = np.random.default_rng(0).integers(0, 256, 4 * side, dtype=np.uint8).tobytes()
    for x, y, dx, dy in (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ):
        line = b"\4" + row[: 4 * -(-(side - x) // dx)]
        coded += [idat.compress(line) for _ in range(-(-(side - y) // dy))]
    head = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 1)
    body = b"".join([*coded, idat.flush()])
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(kind, content) for kind, content in ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_gives_the_same_pixels(pool: Any, kind: str) -> None:
    """To the last bit, whatever the format; and the same status for the same damage."""
    file = encode(scene(400, 300), kind, **({"exif": exif(6)} if kind in ("JPEG", "PNG", "WEBP") else {}))
    status, pixels = answer_of(pool, file)
    recipe = imaging.Recipe.from_json(RECIPE)
    assert status == OK
    assert np.array_equal(pixels, imaging.preprocess(file, recipe, max_pixels=MAX_PIXELS))
    assert answer_of(pool, file[: len(file) // 2]) == (CORRUPT, None)


def test_a_picture_that_takes_too_long_is_ended() -> None:
    """And the next one is answered, by another process."""
    file, small = heavy(3000), encode(scene(), "PNG")
    with guarding(cpu_seconds=0.05) as pool:
        assert status_of(pool, small) == OK
        with pytest.raises(guard.Ended, match="SIGPROF"):
            answer_of(pool, file, LARGE)
        assert status_of(pool, small) == OK
    with guarding() as pool:
        assert status_of(pool, file, LARGE) == OK


def test_time_is_counted_anew_for_every_picture() -> None:
    """A process that has worked for long is not punished for it."""
    with guarding(cpu_seconds=0.3) as pool:
        file = encode(scene(700, 700), "PNG")
        process = _only_process(pool)
        while sum(process.cpu_times()[:2]) < 1:
            assert status_of(pool, file) == OK
        assert _only_process(pool) == process


def test_memory_is_bounded() -> None:
    """A picture that needs more than is allowed is too large, whatever its header says, and costs nobody else."""
    file, small = heavy(3000), encode(scene(), "PNG")
    with guarding(memory=20 << 20) as pool:
        assert [status_of(pool, each, LARGE) for each in (small, file, small)] == [OK, TOO_LARGE, OK]


def test_pixels_are_limited_in_a_process_too(pool: Any) -> None:
    """By the limit of each question."""
    file = encode(Image.new("1", (40, 25)), "PNG")
    assert [status_of(pool, file, limit) for limit in (1000, 999, 1000)] == [OK, TOO_LARGE, OK]


def test_a_process_that_is_stuck_is_killed() -> None:
    """One that uses no processor time meets no limit of that; the next picture has another process."""
    with guarding(stuck_s=4) as pool:
        _only_process(pool).suspend()
        with pytest.raises(RuntimeError, match="did not answer in time"):
            answer_of(pool, encode(scene(), "PNG"))
        assert status_of(pool, encode(scene(), "PNG")) == OK


def test_when_one_is_stuck_the_idle_ones_are_not_trusted() -> None:
    """What stopped it may have stopped all; and a decoder is not waited for longer than its caller waits."""
    file = memoryview(encode(scene(), "PNG"))
    with guarding() as pool:
        decoders = [pool._take(time.monotonic() + 60) for _ in range(3)]
        for decoder in decoders:
            pool._busy.pop(decoder)
            pool._give_back(decoder)
            psutil.Process(decoder._process.pid).suspend()
        with pytest.raises(RuntimeError, match="did not answer in time"):
            pool.preprocess(file, MAX_PIXELS, time.monotonic() + 0.1)
        assert status_of(pool, bytes(file)) == OK


def test_a_crash_costs_its_own_picture() -> None:
    """As when a decoder writes where it must not."""
    with guarding() as pool:
        _only_process(pool).send_signal(signal.SIGSEGV)
        with pytest.raises(guard.Ended, match="SIGSEGV"):
            answer_of(pool, encode(scene(), "PNG"))
        assert status_of(pool, encode(scene(), "PNG")) == OK


def test_a_process_that_somebody_killed_costs_nothing() -> None:
    """The picture is asked for again."""
    with guarding() as pool:
        _only_process(pool).kill()
        assert status_of(pool, encode(scene(), "PNG")) == OK


def test_a_fault_of_ours_is_no_verdict_on_a_picture() -> None:
    """A decoder that cannot start says why on its error output; nobody calls the picture corrupt."""
    broken = guard.Guard("{}", 224, cpu_seconds=1, memory=1 << 30)
    with pytest.raises(RuntimeError, match="exited with code 1"):  # its traceback is on the error output
        answer_of(broken, encode(scene(), "PNG"))


def test_many_threads_at_once(pool: Any) -> None:
    """Everybody gets its own picture's pixels."""
    files = [encode(Image.new("RGB", (40 + i, 30), (i, 2 * i, 255 - i)), KINDS[i % 5]) for i in range(60)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda file: answer_of(pool, file), files))
    recipe = imaging.Recipe.from_json(RECIPE)
    for file, (status, pixels) in zip(files, answers, strict=True):
        assert status == OK
        assert np.array_equal(pixels, imaging.preprocess(file, recipe, max_pixels=MAX_PIXELS))


def test_no_process_outlives_its_owner() -> None:
    """Not even when the owner is killed in the middle of its work."""
    program = (
        f"import sys; sys.path.append({str(PREPROCESSOR)!r}); import guard;"
        "g = guard.Guard(sys.argv[1], 224, cpu_seconds=9, memory=2**30);"
        "d = g._take(float('inf')); print(d._process.pid, flush=True); d._process.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program, RECIPE], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        decoder = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    decoder.wait(20)


def _only_process(pool: Any) -> psutil.Process:
    """The one that answered, once the pool has one."""
    assert status_of(pool, encode(scene(), "PNG")) == OK
    (decoder,) = pool._idle
    return psutil.Process(decoder._process.pid)
