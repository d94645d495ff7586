"""What every request gets: an id, a duration, a count, and a problem document if all else fails."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.observe import metrics
from gateway.observe.logging import request_id
from gateway.web.problems import CLIENT_CLOSED_REQUEST, internal_error

log = logging.getLogger("gateway.access")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMiddleware:
    """Request id, `Server-Timing`, metrics, access log; routes put their own times into `state["timings"]`."""

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        own_id = _request_id(scope)
        request_id.set(own_id)
        timings: dict[str, float] = {}
        method = scope["method"] if scope["method"] in _METHODS else "other"
        state = {**scope.get("state", {}), "timings": timings, "start": start}
        # The server leaves the body out of an answer to HEAD; the application need not know that method.
        scope = {**scope, "state": state, "method": "GET" if method == "HEAD" else scope["method"]}
        status, gone = 500, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, gone
            if message["type"] == "http.response.start":
                status = message["status"]
                timings["total"] = time.perf_counter() - start
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = own_id
                headers["Server-Timing"] = ", ".join(f"{k};dur={v * 1000:.2f}" for k, v in timings.items())
            try:
                await send(message)
            except Exception:  # what a transport raises when the other end is gone differs by event loop
                gone = True
                raise

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            if gone:
                status = CLIENT_CLOSED_REQUEST
                return
            log.exception("Unhandled error")
            if "total" in timings:  # the answer has begun: all that is left is to break it off
                raise
            await internal_error()(scope, receive, send_with_headers)
        finally:
            self._count(scope, method, status, time.perf_counter() - start)

    def _count(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "unmatched"
        metrics.REQUESTS.labels(route, method, status).inc()
        metrics.REQUEST_SECONDS.labels(route).observe(seconds)
        if self._access_log:
            extra = {"method": method, "route": route, "status": status, "ms": round(seconds * 1000, 2)}
            log.info("request", extra=extra)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            if _SANE_ID.fullmatch(text):
                return text
    return uuid.uuid4().hex
