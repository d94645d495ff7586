"""What keys and rates cost a request: processor time of the gateway, with a Triton in memory.

python -m benchmarks.access
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway.access.keys import add_key
from gateway.app import create_app
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton

ROUNDS, REQUESTS = 15, 400
PICTURE = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)


async def _post(app: Any, state: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
    messages = [{"type": "http.request", "body": PICTURE, "more_body": False}]
    statuses = []

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status"))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/classify", "raw_path": b"/v1/classify", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"x"), (b"content-type", b"image/gif"), *headers],
        "client": ("203.0.113.7", 4711), "server": ("127.0.0.1", 8080), "state": dict(state),
    }  # fmt: skip
    await app(scope, receive, send)
    assert statuses[0] == 200, statuses


async def main() -> None:
    """Takes turns, so that a busy machine is busy for all; prints the fastest round of each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        keys = [add_key(file, f"key-{i}")[1] for i in range(100)]
        shown = [(b"authorization", b"Bearer " + keys[50].encode())]
        cases = {
            "neither": Settings(),
            "keys": Settings(api_keys_file=file),
            "rates": Settings(rate_limit="100000000/minute"),
            "keys and rates": Settings(api_keys_file=file, rate_limit="100000000/minute"),
        }
        apps = {name: create_app(settings, FakeTriton()) for name, settings in cases.items()}
        best = dict.fromkeys(cases, float("inf"))
        lifespans = {name: app.router.lifespan_context(app) for name, app in apps.items()}
        states = {name: await lifespan.__aenter__() for name, lifespan in lifespans.items()}
        for _ in range(ROUNDS):
            for name, app in apps.items():
                start = time.process_time()
                for _ in range(REQUESTS):
                    await _post(app, dict(states[name] or {}), shown)
                best[name] = min(best[name], (time.process_time() - start) / REQUESTS)
        for lifespan in lifespans.values():
            await lifespan.__aexit__(None, None, None)
    for name, seconds in best.items():
        print(f"{name:<16} {seconds * 1e6:6.0f} µs  {(seconds - best['neither']) * 1e6:+6.1f} µs")


if __name__ == "__main__":
    asyncio.run(main())
