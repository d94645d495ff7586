"""HTTP/1.1 on the socket: uvicorn's httptools protocol, with our words for what is not HTTP at all."""

from __future__ import annotations

import logging
import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.observe.logging import request_id
from gateway.web.problems import problem


class Protocol(HttpToolsProtocol):
    """Bytes that are no HTTP request (or an unknown method) get a problem document, then the socket closes."""

    def send_400_response(self, msg: str) -> None:
        own_id = uuid.uuid4().hex
        request_id.set(own_id)
        answer = problem(
            "malformed_request",
            "The request cannot be read",
            "This is not an HTTP/1.1 request.",
            headers={"Connection": "close", "X-Request-ID": own_id},
        )
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


# The library warns about every such request with a line that says nothing else; scanners send thousands.
logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != "Invalid HTTP request received.")
