"""HTTP/1.1 on the socket: uvicorn's httptools protocol with limits, and with our words for what is not HTTP.

What the parser underneath does not bound is bounded here: the size of a head (request line and headers, chunk
extensions and trailers too) and the time that it may take.
"""

from __future__ import annotations

import asyncio
import uuid
from http import HTTPStatus

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.observe.logging import request_id
from gateway.web.problems import problem

MAX_HEAD_BYTES = 64 * 1024
NOT_HTTP = "This is not an HTTP/1.1 request."


class Protocol(HttpToolsProtocol):
    """One connection. The lifespan's state gives `head_timeout_s`, the time for a request's line and headers."""

    _outside_bodies = 0  # bytes since the last that belonged to a body, or ended a head or a request
    _upgrading = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio's own type
        """A caller that has sent all and only listens now gets its answer; then the connection closes."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._outside_bodies += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response(NOT_HTTP)
            return
        if self._outside_bodies > MAX_HEAD_BYTES:
            self.send_400_response(f"The request's line and headers are over {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._outside_bodies = 0
        self._upgrading = self.parser.should_upgrade()
        if not self._upgrading:
            self._stop_head_timer()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._outside_bodies = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._outside_bodies = 0
        if not self._upgrading:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False  # the request before this one was whole: it gets its answer first
            return
        self._refuse("malformed_request", "The request cannot be read", msg)

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """A wish to speak HTTP/2 or WebSocket is ignored, as a server may: the same request, without it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response(NOT_HTTP)
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
            self._refuse("body_timeout", "The request did not arrive in time", detail)

    def _refuse(self, code: str, title: str, detail: str) -> None:
        """Answers on the socket itself, because there is no request that the application could answer."""
        own_id = uuid.uuid4().hex
        request_id.set(own_id)
        answer: Response = problem(code, title, detail, headers={"Connection": "close", "X-Request-ID": own_id})
        phrase = HTTPStatus(answer.status_code).phrase
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(
            f"HTTP/1.1 {answer.status_code} {phrase}\r\n".encode() + head + b"\r\n" + bytes(answer.body)
        )
        self.transport.close()
