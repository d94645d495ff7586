"""`/metrics` on a port of its own, for all workers, from the process that started them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gateway.observe import metrics


class _Scrape(BaseHTTPRequestHandler):
    timeout = 10  # of a client that says nothing

    def do_GET(self) -> None:
        found = self.path.partition("?")[0] == "/metrics"
        content, kind = metrics.render() if found else (b"Metrics are at /metrics.\n", "text/plain")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "tidegate"

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Scrape)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a scraper that left


@contextmanager
def scraped_at(host: str, port: int) -> Iterator[None]:
    """Serves until it is left. Raises `OSError` when the port cannot be had."""
    with _Server(host, port) as server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
