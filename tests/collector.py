"""An OpenTelemetry collector in this process: takes OTLP over HTTP on a real socket, and keeps the spans.

Both encodings are taken: protobuf, as the Python SDK sends it, and JSON, as Triton does.
`python -m tests.collector` listens on port 4318 and prints what comes, a trace at a time, until Ctrl-C.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")

Value = str | int | float | bool


@dataclass(frozen=True)
class Span:
    """What was sent of a span, and by whom; ids in hexadecimal, times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start: int
    end: int
    status: str
    message: str
    events: int
    attributes: dict[str, Value]
    sender: dict[str, Value] = field(hash=False, compare=False)


class Collector:
    """Everything that arrived at `endpoint`; `silent` makes it keep a request without ever answering."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.silent = False
        self.asked = threading.Event()
        self.released = threading.Event()
        self._spans: list[Span] = []
        self._arrived = threading.Condition()

    def take(self, kind: str, content: bytes) -> None:
        request = _from_json(content) if kind == "application/json" else ExportTraceServiceRequest.FromString(content)
        with self._arrived:
            for resource in request.resource_spans:
                sender = _attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self._spans += [_span(span, sender) for span in scope.spans]
            self._arrived.notify_all()

    def spans(self, count: int = 0, name: str | None = None, seconds: float = 30.0) -> list[Span]:
        """All spans (of a name), as they began, once there are at least `count` of them."""

        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._named(name)) >= count, seconds), (name, self._spans)
            return self._named(name)

    def arrives(self, name: str, seconds: float) -> bool:
        """Whether a span of that name is here, or comes in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._named(name)), seconds)

    def _named(self, name: str | None) -> list[Span]:
        return sorted((s for s in self._spans if name in (None, s.name)), key=lambda s: s.start)

    def forget(self) -> list[Span]:
        """All spans, which are then no longer here."""
        with self._arrived:
            spans = self.spans()
            self._spans.clear()
        return spans


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector that listens, on any port that is free unless one is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.asked.set()
            content = self.rfile.read(int(self.headers["content-length"]))
            if collector.silent:
                collector.released.wait()
                return
            assert self.path == "/v1/traces"
            collector.take(self.headers["content-type"], content)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.released.set()
            server.shutdown()
            thread.join()


def _from_json(content: bytes) -> ExportTraceServiceRequest:
    """OTLP's JSON is protobuf's, but for ids, which are hexadecimal."""
    document = json.loads(content)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in {"traceId", "spanId", "parentSpanId"} & set(span):
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)


def _span(span: Message, sender: dict[str, Value]) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=KINDS[span.kind],
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        status=STATUSES[span.status.code],
        message=span.status.message,
        events=len(span.events),
        attributes=_attributes(span.attributes),
        sender=sender,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


def _show(spans: list[Span], parent: str = "", depth: int = 0) -> None:
    """The spans below `parent`, each below the one that it is a part of; times in ms since the trace began."""
    known = {span.span_id for span in spans}
    for span in spans:
        if (span.parent_id if span.parent_id in known else "") == parent:
            start, took = (span.start - spans[0].start) / 1e6, (span.end - span.start) / 1e6
            print(f"{'  ' * depth + span.name:<32} {start:8.2f} {took:8.2f}  {span.sender['service.name']}")
            _show(spans, span.span_id, depth + 1)


def main() -> None:
    with collecting(4318) as collector, suppress(KeyboardInterrupt):
        print("Waiting for traces on http://localhost:4318", flush=True)
        while True:
            collector.spans(1, seconds=10**6)
            time.sleep(6)  # gateway and Triton send every five seconds
            spans = collector.forget()
            for trace_id in dict.fromkeys(span.trace_id for span in spans):
                print(f"\n{'trace ' + trace_id[:8]:<32} {'at ms':>8} {'took ms':>8}")
                _show([span for span in spans if span.trace_id == trace_id])


if __name__ == "__main__":
    main()
