"""Limits in a window that slides, in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.access import storage
from gateway.access.rates import AWAY_S, Memory, Rates
from gateway.access.storage import RedisWindows, parse_limits
from gateway.errors import RateLimited
from gateway.triton.local import free_ports


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def running_redis(port: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis of the test's own, and its address."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not here")
    port = port or free_ports(1)[0]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if b"Ready to accept connections" in line:
                break
        try:
            yield f"redis://127.0.0.1:{port}/0", process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other tests is no Redis that is away."""
    monkeypatch.setattr(storage, "REDIS_S", 20.0)
    monkeypatch.setattr(storage, "PLACE_S", 20.0)


@pytest.fixture(scope="module")
def redis() -> Iterator[str]:
    """One Redis for all tests that leave it running; each uses names of its own."""
    with running_redis() as (url, _):
        yield url


async def entered(rates: Rates, name: str, times: int) -> int:
    """How many of `times` requests were let in."""
    count = 0
    for _ in range(times):
        try:
            await rates.enter(name)
        except RateLimited:
            continue
        count += 1
    return count


async def wait_of(rates: Rates, name: str) -> int:
    with pytest.raises(RateLimited) as refused:
        await rates.enter(name)
    return refused.value.retry_after


@pytest.mark.parametrize(
    ("text", "images", "seconds", "words"),
    [
        ("600/minute", 600, 60, "600 images per minute"),
        ("5 per 10 seconds", 5, 10, "5 images per 10 seconds"),
        ("1000/day", 1000, 86400, "1000 images per day"),
    ],
)
def test_limits_are_written_as_the_library_reads_them(text: str, images: int, seconds: int, words: str) -> None:
    """And said back in words."""
    (limit,) = parse_limits(text)
    assert (limit.images, limit.seconds, limit.words) == (images, seconds, words)
    assert parse_limits("") == ()
    assert [each.seconds for each in parse_limits("10/second; 600/minute")] == [1, 60]


@pytest.mark.parametrize("text", ["600", "x/minute", "10/fortnight", "0/minute", "10/second; 0/minute"])
def test_what_is_no_limit(text: str) -> None:
    """A sentence for the operator."""
    with pytest.raises(ValueError, match=r"write limits such as|lets nobody in"):
        parse_limits(text)


async def exact_in_memory() -> None:
    clock = Clock()
    rates = Rates(parse_limits("10/minute"), own=Memory(clock=clock))
    assert await entered(rates, "a", 12) == 10
    assert await entered(rates, "b", 1) == 1  # each for itself
    wait = await wait_of(rates, "a")
    clock.seconds += wait - 1
    assert await entered(rates, "a", 1) == 0
    clock.seconds += 1
    assert await entered(rates, "a", 2) == 1
    clock.seconds += 600
    assert await entered(rates, "a", 12) == 10


def test_the_wait_is_exact() -> None:
    """A second before `retry_after` is over it is too early, and then it is not."""
    asyncio.run(exact_in_memory())


def test_the_window_slides() -> None:
    """No minute, wherever it begins, holds twice the limit: what was counted before weighs as far as it overlaps."""

    async def run() -> None:
        clock = Clock()
        clock.seconds = 59.0
        rates = Rates(parse_limits("60/minute"), own=Memory(clock=clock))
        assert await entered(rates, "a", 100) == 60
        clock.seconds = 61.0  # another minute of the clock
        assert await entered(rates, "a", 100) == 1
        clock.seconds = 90.0
        assert await entered(rates, "a", 100) == 29
        clock.seconds = 180.0
        assert await entered(rates, "a", 100) == 60

    asyncio.run(run())


def test_images_are_counted() -> None:
    """The first before the body is read, the others after; a request of more than the limit takes all of it."""

    async def run() -> None:
        clock = Clock()
        rates = Rates(parse_limits("10/minute"), own=Memory(clock=clock))
        await rates.enter("a")
        await rates.add("a", 8)
        await rates.enter("a")
        with pytest.raises(RateLimited) as refused:
            await rates.add("a", 3)
        clock.seconds += refused.value.retry_after
        await rates.add("a", 3)
        await rates.enter("b")
        await rates.add("b", 256)
        assert await entered(rates, "b", 1) == 0

    asyncio.run(run())


def test_a_short_window_is_asked_first() -> None:
    """A request that it refuses costs nothing in the long one."""

    async def run() -> None:
        clock = Clock()
        rates = Rates(parse_limits("20/minute; 2/second"), own=Memory(clock=clock))
        assert await entered(rates, "a", 50) == 2
        for _ in range(9):
            clock.seconds += 2
            assert await entered(rates, "a", 3) == 2
        clock.seconds += 2
        assert await entered(rates, "a", 1) == 0  # 20 in this minute

    asyncio.run(run())


def test_memory_is_bounded() -> None:
    """However many callers come, so many counts are kept; who goes on coming is not forgotten."""

    async def run() -> None:
        clock = Clock()
        memory = Memory(callers=1000, clock=clock)
        for i in range(200_000):
            await memory.acquire_sliding_window_entry(f"address:{i}", 100_000, 60)
            if i % 500 == 0:
                await memory.acquire_sliding_window_entry("regular", 100_000, 60)
        assert len(memory._counts) == 1000
        assert (await memory.get_sliding_window("regular", 60))[2] == 400

    asyncio.run(run())


def test_several_share_a_redis(redis: str) -> None:
    """What one gateway let in, the other counts."""

    async def run() -> None:
        both = [Rates(parse_limits("10/hour"), RedisWindows(redis)) for _ in range(2)]
        turns = itertools.cycle(both)
        assert sum([await entered(next(turns), "shared", 1) for _ in range(30)]) == 10
        wait = await wait_of(both[0], "shared")
        assert 3500 < wait <= 3600  # just after the window that began with the first request
        assert await entered(both[1], "another", 1) == 1
        await both[0].add("many", 500)
        assert await entered(both[1], "many", 2) == 1
        for rates in both:
            await rates.close()

    asyncio.run(run())


def test_at_once_in_redis(redis: str) -> None:
    """Many at the same time: the script counts them one by one."""

    async def run() -> None:
        rates = Rates(parse_limits("50/hour"), RedisWindows(redis))
        assert sum(await asyncio.gather(*[entered(rates, "crowd", 1) for _ in range(200)])) == 50
        await rates.close()

    asyncio.run(run())


def test_a_redis_that_is_away_takes_nobody_down(caplog: pytest.LogCaptureFixture) -> None:
    """Then the worker counts its own, says so once, asks again after a second, and uses it when it is back."""

    async def run() -> None:
        (port,) = free_ports(1)
        clock = Clock()
        rates = Rates(parse_limits("10/hour"), RedisWindows(f"redis://127.0.0.1:{port}"), clock=clock)
        assert await entered(rates, "a", 30) == 10
        clock.seconds += AWAY_S
        assert await entered(rates, "a", 1) == 0
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        with running_redis(port):
            clock.seconds += AWAY_S
            assert await entered(rates, "a", 30) == 10  # it knows nothing of the ten
            assert await entered(rates, "a", 1) == 0
        assert await entered(rates, "a", 1) == 0  # away once more: our own ten are still counted
        assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]
        await rates.close()

    with caplog.at_level("INFO", "gateway.access.rates"):
        asyncio.run(run())


def test_a_redis_that_hangs_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes connections and never answers is one that is away."""
    monkeypatch.setattr(storage, "REDIS_S", 0.25)

    async def run(port: int) -> None:
        rates = Rates(parse_limits("10/hour"), RedisWindows(f"redis://127.0.0.1:{port}"))
        start = time.monotonic()
        assert await entered(rates, "a", 30) == 10
        assert time.monotonic() - start < 5
        await rates.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(silent.getsockname()[1]))
