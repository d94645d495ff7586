"""Answers that were given before: the same bytes, asked of the same engine, have the same probabilities.

Off unless `TIDEGATE_CACHE_BYTES` is set. A key is the SHA-256 of a file's bytes and the engine's identity, which its
certificate tells; a model without a certificate may change under its version's number, so nothing of it is kept.
Problems are not kept either. Images that are being asked for are not asked for again meanwhile (single flight).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.admission import Deadline
from gateway.errors import ImageProblem
from gateway.observe import metrics
from gateway.triton.discovery import Model


@dataclass(frozen=True)
class Row:
    """Probabilities FP32 `[classes]` of one image, or why there are none, and the model as it was when it answered."""

    value: NDArray[np.float32] | ImageProblem
    model: Model


Files = Sequence[tuple[int, bytes]]
"""Images of a request by their index."""
Key = tuple[str, bytes]

ENTRY_BYTES = 400
"""What an entry takes beside its row: key, array object, place in the dictionary (CPython 3.11, measured: 350)."""


Rows = dict[int, Row]
"""One for each of a request's images, by index."""
Ask = Callable[[Files], Awaitable[Rows]]


class Cache:
    """Rows of at most `max_bytes` together; those that were not asked for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: OrderedDict[Key, NDArray[np.float32]] = OrderedDict()
        self._flying: dict[Key, asyncio.Future[dict[Key, Row]]] = {}

    async def answer(self, files: Files, model: Model, ask: Ask, deadline: Deadline) -> Rows:
        """The rows of all `files`; those that are not known come from `ask`. Raises what that raises."""
        identity = model.identity
        if identity is None:
            return await ask(files)
        keys = {index: (identity, hashlib.sha256(data).digest()) for index, data in files}
        found: Rows = {}
        while missing := [(index, data) for index, data in files if index not in found]:
            mine: dict[Key, tuple[int, bytes]] = {}
            for index, data in missing:
                if (value := self._get(keys[index])) is not None:
                    found[index] = Row(value, model)
                    metrics.CACHE.labels("hit").inc()
                elif keys[index] not in self._flying:
                    mine.setdefault(keys[index], (index, data))
            if mine:
                with self._asking(mine) as landed:
                    answered = await ask(list(mine.values()))
                    metrics.CACHE.labels("miss").inc(len(mine))
                    landed.update({key: answered[index] for key, (index, _) in mine.items()})
                for key, row in landed.items():
                    if row.model.identity == identity:  # else it is another version by now
                        self._put(key, row.value)
                found.update({index: landed[keys[index]] for index, _ in missing if keys[index] in landed})
            elif others := {index: self._flying[keys[index]] for index, _ in missing if keys[index] in self._flying}:
                await asyncio.wait(set(others.values()), timeout=deadline.remaining())
                deadline.remaining()
                for index, flight in others.items():
                    if flight.done() and (joined := flight.result().get(keys[index])):
                        found[index] = joined
                        metrics.CACHE.labels("hit").inc()
        return found

    @contextmanager
    def _asking(self, keys: Collection[Key]) -> Iterator[dict[Key, Row]]:
        """Whoever else wants these waits for the end, gets what was put into the dictionary, or asks itself."""
        flight: asyncio.Future[dict[Key, Row]] = asyncio.get_running_loop().create_future()
        self._flying.update(dict.fromkeys(keys, flight))
        landed: dict[Key, Row] = {}
        try:
            yield landed
        finally:
            for key in keys:
                del self._flying[key]
            flight.set_result(landed)

    def _get(self, key: Key) -> NDArray[np.float32] | None:
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        return row

    def _put(self, key: Key, row: NDArray[np.float32] | ImageProblem) -> None:
        if isinstance(row, ImageProblem) or row.nbytes + ENTRY_BYTES > self._max_bytes:
            return
        self._rows[key] = row.copy()  # a view would keep the whole batch
        self._bytes += row.nbytes + ENTRY_BYTES
        while self._bytes > self._max_bytes:
            _, old = self._rows.popitem(last=False)
            self._bytes -= old.nbytes + ENTRY_BYTES
        metrics.CACHE_BYTES.set(self._bytes)
