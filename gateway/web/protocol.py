"""HTTP/1.1 on the socket: uvicorn's httptools protocol with limits, and with our words for what is not HTTP.

What the parser underneath does not bound is bounded here: the size of a head (request line and headers, chunk
extensions and trailers too) and the time that it may take. And the work for a caller that has left is cancelled.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from http import HTTPStatus

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.observe.logging import request_id
from gateway.web.headers import CACHE, SAFE
from gateway.web.problems import problem

MAX_HEAD_BYTES = 64 * 1024
KNOCKS_S = (0.1, 0.1, 0.5)
NOT_HTTP = "This is not an HTTP/1.1 request."
TOO_LONG = f"The request's line and headers are over {MAX_HEAD_BYTES} bytes."
METHODS = "GET, HEAD, POST"  # of all routes together: a method that the parser does not know reaches none of them

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(_TOKEN + rb" +[!-~]+ HTTP/1\.[01]\r")
_BEGINS_LIKE_ONE = re.compile(_TOKEN + rb"( |$)")


class Protocol(HttpToolsProtocol):
    """One connection. The lifespan's state gives `head_timeout_s`, the time for a request's line and headers, and the
    event `leaving`, after which no connection is kept."""

    _head_bytes = 0
    _outside_bodies = 0  # bytes since the last that belonged to a body, or ended a head or a request
    _upgrading = False
    _head_timer: asyncio.TimerHandle | None = None
    _line: bytearray | None = None  # what came of a request line that is not whole yet
    _application: ASGIApp
    _serving: asyncio.Task[None] | None = None
    _left = False
    _knock_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._application, self.app = self.app, self._serve
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._knock_timer is not None:
            self._knock_timer.cancel()
        super().connection_lost(exc)
        self._left = True
        self.pipeline.clear()
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._serving = asyncio.current_task()
        try:
            await self._application(scope, receive, send)
        except asyncio.CancelledError:
            if not self._left:  # the server is cancelling what its grace time did not suffice for
                raise
            receive.__self__.disconnected = True  # type: ignore[attr-defined]  # uvicorn knows it of the last request only
        finally:
            self._serving = None

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio's own type
        """A caller that has sent all and only listens now gets its answer; then the connection closes."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return None
        if self.scheme == "https":  # TLS has no half of a connection
            return None
        self.cycle.keep_alive = False
        self._knock_timer = self.loop.call_later(KNOCKS_S[0], self._knock, KNOCKS_S[1:])
        return True

    def _knock(self, pauses_s: tuple[float, ...]) -> None:
        """One that has closed its socket says the same as one that listens; but it answers what is sent by a reset.

        So it is sent what every client must expect, and overlooks: 100 Continue.
        """
        if self.transport.is_closing() or self.cycle.response_started or self.scope["http_version"] == "1.0":
            return
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if pauses_s:
            self._knock_timer = self.loop.call_later(pauses_s[0], self._knock, pauses_s[1:])

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._outside_bodies += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserInvalidURLError:
            self.send_400_response(NOT_HTTP)
            return
        except httptools.HttpParserCallbackError:
            if self._head_bytes <= MAX_HEAD_BYTES:
                raise
            self.send_400_response(TOO_LONG)
            return
        except httptools.HttpParserError:
            self._refuse_line(data)
            return
        if self._line is not None:
            self._line += data
        if self._outside_bodies > MAX_HEAD_BYTES:
            self.send_400_response(TOO_LONG)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._line = bytearray()
        self._head_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._line = None
        self._head_bytes += len(name) + len(value) + 4
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._line = None
        self._outside_bodies = 0
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(TOO_LONG)  # the parser stops, and `data_received` sees why
        self._upgrading = self.parser.should_upgrade()
        if not self._upgrading:
            self._stop_head_timer()
            super().on_headers_complete()
            if self.app_state["leaving"].is_set():
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._outside_bodies = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._outside_bodies = 0
        if not self._upgrading:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse("malformed_request", msg)

    def _refuse_line(self, data: bytes) -> None:
        """What the parser stopped at is HTTP with a method that it does not know, or no HTTP, or not whole yet."""
        if self._line is None:  # the error is not in the request line
            self.send_400_response(NOT_HTTP)
            return
        self._line += data  # the parser takes no more; all that comes next comes here
        line, end, _ = bytes(self._line).lstrip(b"\r\n").partition(b"\n")
        if _REQUEST_LINE.fullmatch(line) and not _parses(line):
            self._refuse_method()
        elif end or not _BEGINS_LIKE_ONE.match(line) or len(line) > MAX_HEAD_BYTES:
            self.send_400_response(NOT_HTTP)

    def _refuse_method(self) -> None:
        detail = f"This server takes the methods {METHODS}."
        self._refuse("method_not_allowed", detail, {"Allow": METHODS})

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """A wish to speak HTTP/2 or WebSocket is ignored, as a server may: the same request, without it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse_method()
            return
        wishes = (b"upgrade", b"connection", b"http2-settings")
        headers = [b"%s: %s\r\n" % header for header in self.headers if header[0] not in wishes]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%s %s HTTP/1.1\r\n%s\r\n" % (method, self.url, b"".join(headers)) + rest)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.app_state["head_timeout_s"], self._head_took_too_long)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_took_too_long(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._outside_bodies == 0:
            self.transport.close()  # connected, and said nothing
        else:
            detail = f"The request's headers did not arrive within {self.app_state['head_timeout_s']:g} seconds."
            self._refuse("body_timeout", detail)

    def _refuse(self, code: str, detail: str, more: dict[str, str] | None = None) -> None:
        """Answers on the socket itself, because there is no request that the application could answer."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False  # the request before this one was whole: it gets its answer first
            return
        own_id = uuid.uuid4().hex
        request_id.set(own_id)
        own = {"Connection": "close", "X-Request-ID": own_id, "Server-Timing": "total;dur=0.00"}
        headers = {**own, **SAFE, **CACHE, **(more or {})}
        answer: Response = problem(code, detail, headers=headers)
        phrase = HTTPStatus(answer.status_code).phrase
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(
            f"HTTP/1.1 {answer.status_code} {phrase}\r\n".encode() + head + b"\r\n" + bytes(answer.body)
        )
        self.transport.close()


def _parses(line: bytes) -> bool:
    """Whether the parser takes a request of this line alone: if so, an error lies behind it."""
    try:
        httptools.HttpRequestParser(object()).feed_data(line + b"\n\r\n")
    except httptools.HttpParserUpgrade:
        return True
    except httptools.HttpParserError:
        return False
    return True
