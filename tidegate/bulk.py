"""Many inputs on their way: read ahead of the gateway a little, sent at its pace, kept as they are answered."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from tidegate.client import Client, Model
from tidegate.delivery import Delivery, Retries, Task
from tidegate.errors import Interrupted, Problem
from tidegate.inputs import Input
from tidegate.pace import CEILING, Pace
from tidegate.progress import Display, Tally
from tidegate.reading import MIB, Loaded, read_some, stamp_of
from tidegate.spool import Row, Spool, check_same

AHEAD = 2
"""Batches that are read while others are under way."""
T = TypeVar("T")


class Walk:
    """The inputs, found by a thread of its own, a little ahead.

    Nobody waits for it at the end: it may be waiting itself, for a line of standard input or a file server.
    """

    def __init__(self, inputs: Iterator[Input], chunk: int = 256, ahead: int = 4) -> None:
        self._inputs = inputs
        self._chunk = chunk
        self._room = threading.Semaphore(ahead)
        self._found: asyncio.Queue[list[Input] | Exception] = asyncio.Queue()
        self._ended = False

    def begin(self) -> None:
        """Starts the thread; to be called in the event loop that asks for what it finds."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._find, args=(loop,), name="tidegate-walk", daemon=True).start()

    def _find(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is interested any more
            while not self._ended:
                try:
                    found: list[Input] | Exception = list(islice(self._inputs, self._chunk))
                except Exception as error:  # it belongs to whoever asks
                    found = error
                self._room.acquire()
                loop.call_soon_threadsafe(self._found.put_nowait, found)
                if not found or isinstance(found, Exception):
                    return

    async def next(self) -> list[Input]:
        """Some more; none at the end. Raises what went wrong in the walk."""
        found = await self._found.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        """No more are asked for."""
        self._ended = True
        self._room.release()


@dataclass(frozen=True)
class Plan:
    """How inputs are sent. A batch has at most `batch` files and `batch_bytes` bytes, if it is more than one file."""

    batch: int = 16
    batch_bytes: int = 4 * MIB
    most_file_bytes: int = 64 * MIB
    concurrency: int | None = None
    ceiling: int = CEILING
    retries: Retries = field(default_factory=Retries)
    show_every_s: float = 0.25


class Run:
    """One way through all inputs. `tally` counts; `display` is shown it now and then."""

    def __init__(
        self,
        inputs: Iterator[Input],
        client: Client,
        task: Task,
        spool: Spool,
        plan: Plan,
        tally: Tally,
        display: Display,
    ) -> None:
        self._walk = Walk(inputs)
        self._spool = spool
        self._plan = plan
        self._tally = tally
        self._display = display
        self._pace = Pace(plan.concurrency, plan.ceiling)
        self._delivery = Delivery(client, task, self._pace, plan.retries, self._answered_by)
        self._model = spool.model
        self._waiting: deque[str] = deque()
        self._under_way: set[str] = set()
        self._all_seen = False
        # The spool has a thread of its own, which waits for no file and no folder; files are read by many.
        self._clerk = ThreadPoolExecutor(1, "tidegate-spool")
        self._readers = ThreadPoolExecutor((plan.concurrency or plan.ceiling) + AHEAD, "tidegate-read")

    async def run(self) -> None:
        """Until each input has its row in the spool. Raises a `BulkError`; what was answered by then is kept."""
        batches: set[asyncio.Task[None]] = set()
        showing = asyncio.create_task(self._show())
        self._walk.begin()
        try:
            with _interruptible():
                while True:
                    paths = await self._next_batch()
                    if paths:
                        batches.add(asyncio.create_task(self._handle(paths)))
                    elif not batches:
                        break
                    while batches and (not paths or len(batches) >= self._pace.limit + AHEAD):
                        done, batches = await asyncio.wait(batches, return_when=asyncio.FIRST_COMPLETED)
                        # Of all: asyncio logs those that nobody asks for.
                        failures = [failure for each in done if (failure := each.exception())]
                        if failures:
                            raise failures[0]
                        if self._waiting:
                            break
        finally:
            self._walk.end()
            showing.cancel()
            for each in batches:
                each.cancel()
            await asyncio.gather(showing, *batches, return_exceptions=True)
            self._display.show(self._tally, self._pace.limit, 0)
            try:
                await self._in(self._clerk, self._spool.commit)
            finally:
                self._clerk.shutdown(wait=False)
                self._readers.shutdown(wait=False, cancel_futures=True)

    async def _next_batch(self) -> list[str]:
        while len(self._waiting) < self._plan.batch and not self._all_seen:
            found = await self._walk.next()
            self._all_seen = not found
            self._waiting += await self._in(self._clerk, lambda: self._unknown(found))  # noqa: B023  # awaited at once
        return [self._waiting.popleft() for _ in range(min(self._plan.batch, len(self._waiting)))]

    def _unknown(self, inputs: Sequence[Input]) -> list[str]:
        """Paths of files that are to be sent; the others are dealt with here."""
        paths: list[str] = []
        for each in inputs:
            known = self._spool.want(each.path)
            if each.problem is not None:
                self._spool.add([Row(each.path, None, problem=each.problem)])
                self._tally.count(failed=1)
            elif each.path in self._under_way or (known is not None and stamp_of(each.path) == known):
                self._tally.count(known=1)
            else:
                self._under_way.add(each.path)
                paths.append(each.path)
        return paths

    async def _handle(self, paths: Sequence[str]) -> None:
        plan = self._plan
        loaded, rest = await self._in(self._readers, lambda: read_some(paths, plan.batch_bytes, plan.most_file_bytes))
        self._waiting.extendleft(reversed(rest))
        rows = await self._rows(loaded)
        failed = sum(row.problem is not None for row in rows)
        # What was answered is kept, even if the run ends in this moment.
        adding = asyncio.create_task(self._in(self._clerk, lambda: self._spool.add(rows, self._model)))
        adding.add_done_callback(lambda done: done.cancelled() or done.exception())  # or asyncio logs what comes late
        await asyncio.shield(adding)
        self._under_way.difference_update(row.path for row in rows)
        self._tally.count(answered=len(rows) - failed, failed=failed)

    async def _rows(self, loaded: Sequence[Loaded]) -> list[Row]:
        outcomes: Iterator[bytes | Problem] = iter(())
        contents = [file.content for file in loaded if file.problem is None]
        if contents:
            outcomes = iter(await self._delivery.deliver(contents))
        rows = []
        for file in loaded:
            outcome = file.problem or next(outcomes)
            if isinstance(outcome, Problem):
                rows.append(Row(file.path, file.stamp, problem=outcome))
            else:
                rows.append(Row(file.path, file.stamp, outcome))
        return rows

    def _answered_by(self, model: Model) -> None:
        if self._model is None:
            self._model = model
        check_same(self._model, model)

    async def _show(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                self._display.show(self._tally, self._pace.limit, self._pace.pause_s)
                await asyncio.sleep(self._plan.show_every_s)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM cancel what runs here, and come out as `Interrupted`; a second one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    caught: list[int] = []

    def end(number: int) -> None:
        caught.append(number)
        loop.remove_signal_handler(number)
        task.cancel()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if caught:
            raise Interrupted(caught[0]) from None
        raise
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
