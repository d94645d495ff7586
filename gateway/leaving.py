"""SIGTERM in two steps: first `/readyz` says 503, while requests are still taken; then the server hears of it.

Balancers need a moment to notice; whoever they send meanwhile is answered, and told to close the connection.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def notice(delay_s: float) -> Iterator[asyncio.Event]:
    """An event that SIGTERM sets `delay_s` seconds before the server's own handler runs; inside a running loop.

    Not in the main thread, where nobody may handle signals, it is never set.
    """
    leaving = asyncio.Event()
    if threading.current_thread() is not threading.main_thread():
        yield leaving
        return
    loop = asyncio.get_running_loop()
    server = signal.getsignal(signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(begin, number)

    def begin(number: int) -> None:
        if not leaving.is_set() and callable(server):
            leaving.set()
            loop.call_later(delay_s, server, number, None)

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield leaving
    finally:
        signal.signal(signal.SIGTERM, server)
