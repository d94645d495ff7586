"""What the rates have from the libraries `limits` and `redis`, of the extra `rates`: the only importer of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from limits import RateLimitItem, parse_many
from limits.aio.storage.redis import RedisStorage
from redis.asyncio import BlockingConnectionPool
from redis.exceptions import RedisError

from gateway.access.rates import Limit, WindowsAway

REDIS_S = 0.25
"""Seconds that Redis may take for a connection, and for an answer."""
CONNECTIONS = 64
PLACE_S = 1.0
"""Seconds that a question may wait for one of the connections: that others ask too does not mean that Redis is away."""


def parse_limits(text: str) -> tuple[Limit, ...]:
    """`10/second; 600/minute` → limits; none when there is no text. Raises ValueError with a sentence."""
    if not text:
        return ()
    try:
        limits = tuple(Limit(each.amount, each.get_expiry(), _words(each)) for each in parse_many(text))
    except ValueError as error:
        raise ValueError("write limits such as 600/minute, or 10/second; 600/minute") from error
    if not all(limit.images for limit in limits):
        raise ValueError("a limit of 0 lets nobody in")
    return limits


def _words(item: RateLimitItem) -> str:
    window = f"{item.multiples} {item.GRANULARITY.name}s" if item.multiples > 1 else item.GRANULARITY.name
    return f"{item.amount} images per {window}"


class RedisWindows:
    """`Windows` in the Redis at `url`, for all gateways that use it. Make it in a running loop."""

    def __init__(self, url: str) -> None:
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=PLACE_S,
            socket_timeout=REDIS_S,
            socket_connect_timeout=REDIS_S,
        )
        pool: Any = self._pool  # documented, and not in the library's types
        self._storage = RedisStorage(
            f"async+{url}", implementation="redispy", key_prefix="tidegate", connection_pool=pool
        )

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        with _translated():
            return await self._storage.acquire_sliding_window_entry(key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        with _translated():
            return await self._storage.get_sliding_window(key, expiry)

    async def close(self) -> None:
        await self._pool.aclose()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise WindowsAway(f"{type(error).__name__}: {error}") from error
