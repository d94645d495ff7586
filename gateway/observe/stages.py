"""The stages of a request, each timed once: the same two readings of one clock go to the answer and to the trace.

    with Stage("read") as read:
        upload = await read_upload(…)
        read.note({"tidegate.images": len(upload.files)})

A stage belongs to the request whose `Timeline` was begun in its context. Where nothing is traced it costs about a
microsecond; how spans are made is known to `gateway.observe.tracing` alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol

Attributes = Mapping[str, str | int | float | bool]
Metadata = tuple[tuple[str, str], ...]

SHOWN = frozenset({"read", "fetch", "wait", "infer"})
"""Stages whose times are part of the contract of an answer; a trace has all stages."""
NANOSECOND = 1e-9


class Span(Protocol):
    """What a trace keeps of a request, or of a stage of it."""

    def child(self, name: str, start: int, *, outgoing: bool) -> Span: ...

    def rename(self, name: str) -> None: ...

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, reason: str) -> None: ...

    def end(self, end: int, error: BaseException | None = None) -> None: ...

    def metadata(self) -> Metadata: ...


class Timeline:
    """One request: when it began, and how long its stages took; instants are those of `time.perf_counter_ns`.

    `span` is the request's own, if it is traced; `ids` go into log lines, and are known even if it is not.
    """

    __slots__ = ("_ended", "ids", "span", "start")

    def __init__(self, start: int, span: Span | None = None, ids: Mapping[str, str] | None = None) -> None:
        self.start = start
        self.span = span
        self.ids = ids or {}
        self._ended: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """From now on, stages in this context belong to this request."""
        _timeline.set(self)

    def add(self, stage: str, start: int, end: int) -> None:
        """A stage has ended. One that ran several times at once counts from its first start to its last end."""
        if stage in self._ended:
            first, last = self._ended[stage]
            start, end = min(first, start), max(last, end)
        self._ended[stage] = (start, end)

    def timings(self) -> dict[str, float]:
        """What an answer shows, in seconds: those of the `SHOWN` stages that have ended, and the total until now."""
        shown = {stage: (end - start) * NANOSECOND for stage, (start, end) in self._ended.items() if stage in SHOWN}
        shown["total"] = (time.perf_counter_ns() - self.start) * NANOSECOND
        return shown


class Stage:
    """One stage, timed and, if its request is traced, traced. `outgoing` says that it is a call to another service."""

    __slots__ = ("_end", "_name", "_outgoing", "_span", "_start", "_timeline", "_token")

    _start: int
    _end: int
    _timeline: Timeline | None
    _token: Token[Span | None]

    def __init__(self, name: str, *, outgoing: bool = False) -> None:
        self._name = name
        self._outgoing = outgoing
        self._span: Span | None = None

    def __enter__(self) -> Stage:
        timeline = self._timeline = _timeline.get()
        self._start = time.perf_counter_ns()
        if timeline is not None and timeline.span is not None:
            self._span = timeline.span.child(self._name, self._start, outgoing=self._outgoing)
            self._token = _current.set(self._span)
        return self

    def note(self, attributes: Attributes) -> None:
        """Attributes for the span: names of the semantic conventions, or `tidegate.…`; nothing that a caller chose."""
        if self._span is not None:
            self._span.note(attributes)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end = time.perf_counter_ns()
        if self._timeline is not None:
            self._timeline.add(self._name, self._start, self._end)
        if self._span is not None:
            _current.reset(self._token)
            self._span.end(self._end, error)

    @property
    def seconds(self) -> float:
        """How long it took, once it has ended."""
        return (self._end - self._start) * NANOSECOND


def note(attributes: Attributes) -> None:
    """`Stage.note` from further below: for the stage that runs in this context, if there is one."""
    span = _current.get()
    if span is not None:
        span.note(attributes)


def metadata() -> Metadata:
    """What to send along with a call, so that the other side's spans become children of the stage's; often nothing."""
    span = _current.get()
    return () if span is None else span.metadata()


def ids() -> Mapping[str, str]:
    """`trace_id` and `span_id` of the request in this context; empty when traces are off."""
    timeline = _timeline.get()
    return {} if timeline is None else timeline.ids


_timeline: ContextVar[Timeline | None] = ContextVar("timeline", default=None)
_current: ContextVar[Span | None] = ContextVar("current", default=None)
