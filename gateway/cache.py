"""Answers that were given before: the same bytes, asked of the same engine, have the same values.

Off unless `TIDEGATE_CACHE_BYTES` is set. A key is the SHA-256 of an item's bytes and the engine's identity, which its
certificate tells, with the outputs that were asked for; a model without a certificate may change under its version's
number, so nothing of it is kept. Problems are not kept either. Items that are being asked for are not asked for again
meanwhile (single flight).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from gateway.admission import Deadline
from gateway.errors import ItemProblem
from gateway.observe import metrics
from gateway.triton.model import Model

Values = Mapping[str, NDArray[Any]]
"""What a model gave for one item: of each output its row, such as probabilities FP32 `[classes]`."""


@dataclass(frozen=True)
class Row:
    """The values of one item, and the model as it was when it answered; with a `problem` there are no values."""

    values: Values
    model: Model
    problem: ItemProblem | None = None


class Question(Protocol):
    """What decides an answer beside the item's own bytes."""

    @property
    def model(self) -> Model: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...


Items = Sequence[tuple[int, bytes]]
"""Items of a request by their index."""
Key = tuple[str, bytes]

ENTRY_BYTES, ARRAY_BYTES = 500, 120
"""What an entry takes beside its numbers: key and places in dictionaries; each array's own object (CPython 3.11)."""


Rows = dict[int, Row]
"""One for each of a request's items, by index."""
Ask = Callable[[Items], Awaitable[Rows]]


class Cache:
    """Rows of at most `max_bytes` together; those that were not asked for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: OrderedDict[Key, Values] = OrderedDict()
        self._flying: dict[Key, asyncio.Future[dict[Key, Row]]] = {}

    async def answer(self, items: Items, question: Question, ask: Ask, deadline: Deadline) -> Rows:
        """The rows of all `items`; those that are not known come from `ask`. Raises what that raises."""
        model = question.model
        if model.identity is None:
            return await ask(items)
        identity = f"{model.identity}/{','.join(question.outputs)}"
        keys = {index: (identity, hashlib.sha256(data).digest()) for index, data in items}
        found: Rows = {}
        while missing := [(index, data) for index, data in items if index not in found]:
            mine: dict[Key, tuple[int, bytes]] = {}
            for index, data in missing:
                if (values := self._get(keys[index])) is not None:
                    found[index] = Row(values, model)
                    metrics.CACHE.labels("hit").inc()
                elif keys[index] not in self._flying:
                    mine.setdefault(keys[index], (index, data))
            if mine:
                with self._asking(mine) as landed:
                    answered = await ask(list(mine.values()))
                    metrics.CACHE.labels("miss").inc(len(mine))
                    landed.update({key: answered[index] for key, (index, _) in mine.items()})
                for key, row in landed.items():
                    if row.model.identity == model.identity:  # else it is another version by now
                        self._put(key, row)
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

    def _get(self, key: Key) -> Values | None:
        values = self._rows.get(key)
        if values is not None:
            self._rows.move_to_end(key)
        return values

    def _put(self, key: Key, row: Row) -> None:
        if row.problem or _size(row.values) > self._max_bytes:
            return
        self._rows[key] = {name: array.copy() for name, array in row.values.items()}  # views would keep the whole batch
        self._bytes += _size(row.values)
        while self._bytes > self._max_bytes:
            _, old = self._rows.popitem(last=False)
            self._bytes -= _size(old)
        metrics.CACHE_BYTES.set(self._bytes)


def _size(values: Values) -> int:
    return ENTRY_BYTES + sum(array.nbytes + ARRAY_BYTES for array in values.values())
