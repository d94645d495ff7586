"""What every request gets: an id, a duration, a count, a span, and a problem document if all else fails."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.observe import metrics
from gateway.observe.logging import request_id
from gateway.observe.stages import NANOSECOND, Span, Timeline
from gateway.web.headers import CACHE, SAFE
from gateway.web.problems import CLIENT_CLOSED_REQUEST

if TYPE_CHECKING:  # it needs the extra `otel`
    from gateway.observe.tracing import Tracing

log = logging.getLogger("gateway.access")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_QUIET = frozenset({"/livez", "/readyz", "/metrics"})  # asked every few seconds: they begin no traces of their own
_SAFE = [(name.lower().encode(), value.encode()) for name, value in SAFE.items()]
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMiddleware:
    """Request id, `Server-Timing`, headers for browsers, metrics, traces, access log; `fault` answers for a fault.

    Routes find the request's `state["timeline"]`, and may leave the name of its API key in `state["key"]`.
    """

    def __init__(self, app: ASGIApp, *, access_log: bool, fault: ASGIApp) -> None:
        self._app = app
        self._access_log = access_log
        self._fault = fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own_id = _request_id(scope)
        request_id.set(own_id)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        timeline = _timeline(scope, method)
        timeline.begin()
        state = {**scope.get("state", {}), "timeline": timeline}
        # The server leaves the body out of an answer to HEAD; the application need not know that method.
        scope = {**scope, "state": state, "method": "GET" if method == "HEAD" else scope["method"]}
        status, begun, gone = 500, False, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, begun, gone
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = own_id
                headers["Server-Timing"] = ", ".join(f"{k};dur={v * 1000:.2f}" for k, v in timeline.timings().items())
                headers.raw.extend(_SAFE)
                for name, value in CACHE.items():
                    headers.setdefault(name, value)
            try:
                await send(message)
            except Exception:  # what a transport raises when the other end is gone differs by event loop
                gone = True
                raise

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            status = CLIENT_CLOSED_REQUEST
            raise
        except Exception:
            if gone:
                status = CLIENT_CLOSED_REQUEST
                return
            log.exception("Unhandled error")
            if begun:  # all that is left is to break the answer off
                raise
            await self._fault(scope, receive, send_with_headers)
        finally:
            end = time.perf_counter_ns()
            route: str | None = getattr(scope.get("route"), "path", None)
            self._count(route or "unmatched", method, status, (end - timeline.start) * NANOSECOND, state.get("key"))
            if timeline.span is not None:
                _end(timeline.span, route, method, status, end)

    def _count(self, route: str, method: str, status: int, seconds: float, key: str | None) -> None:
        metrics.REQUESTS.labels(route, method, status).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(seconds)
        if self._access_log:
            extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2)}
            log.info("request", extra=extra if key is None else {**extra, "key": key})


def _timeline(scope: Scope, method: str) -> Timeline:
    """Of a request that begins now; with a span if traces are on, in which nothing is that the caller chose."""
    start = time.perf_counter_ns()
    tracing: Tracing | None = scope.get("state", {}).get("tracing")
    if tracing is None:
        return Timeline(start)
    attributes = {
        "http.request.method": "_OTHER" if method == "other" else method,
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }
    may_begin = scope["path"] not in _QUIET
    return tracing.timeline(start, _span_name(method), scope["headers"], attributes, may_begin=may_begin)


def _end(span: Span, route: str | None, method: str, status: int, end: int) -> None:
    attributes: dict[str, str | int] = {"http.response.status_code": status}
    if route:
        span.rename(f"{_span_name(method)} {route}")
        attributes["http.route"] = route
    span.note(attributes)
    if status >= 500:
        span.fail(str(status))
    span.end(end)


def _span_name(method: str) -> str:
    return "HTTP" if method == "other" else method  # as the semantic conventions have it


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            if _SANE_ID.fullmatch(text):
                return text
    return uuid.uuid4().hex
