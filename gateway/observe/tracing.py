"""Traces: the one module that knows OpenTelemetry. It is imported only where `TIDEGATE_TRACES_ENDPOINT` is set.

Spans go over OTLP/HTTP to a collector, from a queue and a thread of their own: a collector that is slow or away
costs spans, never a request. The provider is this object's, not the process's: nothing else finds it and adds spans.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.errors import ClientLeft, RequestError, TidegateError
from gateway.observe.stages import Attributes, Metadata, Timeline

log = logging.getLogger(__name__)

TRACES_PATH = "/v1/traces"  # of OTLP/HTTP
REPORT_EVERY_S = 60.0

_W3C = TraceContextTextMapPropagator()
_MAX_HEADER = 512  # the longest traceparent and tracestate that OpenTelemetry takes; of longer ones it would log


class Tracing:
    """Makes spans and sends them; one for each process, made after a fork, and closed before the process ends.

    `endpoint` is the collector's URL. `ratio` is the share of requests that are traced where the caller has not
    decided it. What else can be told to OpenTelemetry (headers, certificates, resource attributes, the size of its
    queue) it reads from its own `OTEL_…` variables.
    """

    def __init__(self, endpoint: str, ratio: float) -> None:
        ours = {"service.name": "tidegate", "service.version": __version__, "service.instance.id": str(uuid.uuid4())}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create().merge(Resource(ours)).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # `close` does it, and waits less long for a collector that is away
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(endpoint))))
        self._tracer = self._provider.get_tracer("tidegate", __version__)
        _report_seldom()

    def timeline(
        self,
        start: int,
        name: str,
        headers: Iterable[tuple[bytes, bytes]],
        attributes: Attributes,
        *,
        may_begin: bool = True,
    ) -> Timeline:
        """Of a request that began at `start` (`perf_counter_ns`), with a span if it is to be traced.

        A sane `traceparent` among the `headers` makes the span a part of the caller's trace, and says whether it is
        recorded. Without one the ratio decides; with `may_begin` false, no trace is begun.
        """
        parent = _parent(headers)
        if not parent and not may_begin:
            return Timeline(start)
        epoch = time.time_ns() - time.perf_counter_ns()  # one clock for all spans of a request, so that they nest
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=epoch + start)
        context = span.get_span_context()
        if not context.is_valid:  # OTEL_SDK_DISABLED
            return Timeline(start)
        ids = {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
        recorded = _Span(self._tracer, span, parent, epoch) if span.is_recording() else None
        return Timeline(start, recorded, ids)

    async def close(self, patience_s: float) -> None:
        """Sends what is queued; what the collector has not taken after `patience_s` is lost."""
        sender = threading.Thread(target=self._provider.shutdown, name="traces-flush", daemon=True)
        sender.start()
        await asyncio.to_thread(sender.join, patience_s)
        if sender.is_alive():
            log.warning("The last traces are lost: the collector did not take them in time")


class _Span:
    """A recorded span, and the context that makes others its children; `epoch` turns our clock into the world's."""

    __slots__ = ("_context", "_epoch", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span, parent: Context, epoch: int) -> None:
        self._tracer, self._span, self._epoch = tracer, span, epoch
        self._context = set_span_in_context(span, parent)

    def child(self, name: str, start: int, *, outgoing: bool) -> _Span:
        kind = SpanKind.CLIENT if outgoing else SpanKind.INTERNAL
        span = self._tracer.start_span(name, self._context, kind, start_time=self._epoch + start)
        return _Span(self._tracer, span, self._context, self._epoch)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, reason: str) -> None:
        self._span.set_attribute("error.type", reason)
        self._span.set_status(StatusCode.ERROR)  # without a text: it could hold what a caller sent

    def end(self, end: int, error: BaseException | None = None) -> None:
        if error is not None:
            reason = error.code if isinstance(error, TidegateError) else type(error).__qualname__
            if isinstance(error, Exception) and not isinstance(error, RequestError | ClientLeft):
                self.fail(reason)
            else:  # the caller's doing, or the work was not needed any more
                self._span.set_attribute("error.type", reason)
        self._span.end(end_time=self._epoch + end)

    def metadata(self) -> Metadata:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, self._context)
        return tuple(carrier.items())


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """The caller's span, as W3C Trace Context tells it; empty when the headers do not, or not clearly."""
    parents = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
    if len(parents) != 1 or len(parents[0]) > _MAX_HEADER:
        return Context()
    state = ",".join(value.decode("latin-1") for name, value in headers if name == b"tracestate")
    return _W3C.extract({"traceparent": parents[0], "tracestate": state if len(state) <= _MAX_HEADER else ""})


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=TRACES_PATH)) if parts.path in ("", "/") else endpoint


class _Seldom(logging.Handler):
    """Passes on what OpenTelemetry logs, such as every failed export, at most once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_EVERY_S
            log.warning("Traces are being lost", extra={"reason": record.getMessage()})


def _report_seldom() -> None:
    """Once for the process, because OpenTelemetry's loggers are the process's."""
    theirs = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Seldom) for handler in theirs.handlers):
        theirs.addHandler(_Seldom())
        theirs.propagate = False
