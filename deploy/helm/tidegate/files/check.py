"""Asks a gateway whether it is ready and lets it classify a small picture; exit code 0 when both went well.

python check.py HOST PORT, with an API key in TIDEGATE_KEY where the gateway wants one.
"""

import http.client
import json
import os
import struct
import sys
import time
import zlib

PATIENCE_S = 60


def picture(side: int = 64) -> bytes:
    """A PNG with a gradient, so that nothing but this file is needed."""

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + bytes(v for x in range(side) for v in (4 * x % 256, 4 * y % 256, 128)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def ask(host: str, port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body of the answer; 0 and the reason when there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=20)
    key = os.environ.get("TIDEGATE_KEY")
    try:
        connection.request(method, path, body, {"X-API-Key": key} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def main(host: str, port: int, patience_s: float = PATIENCE_S) -> int:
    """0 when it is ready within `patience_s` and gives the picture a label."""
    end = time.monotonic() + patience_s
    while (answer := ask(host, port, "GET", "/readyz"))[0] != 200:
        if time.monotonic() > end:
            print(f"not ready: {answer[0]} {answer[1].decode(errors='replace')}")
            return 1
        time.sleep(1)
    status, content = ask(host, port, "POST", "/v1/classify?top_k=1", picture())
    print(f"{status} {content.decode(errors='replace')}")
    if status == 401:
        print("gateway.apiKeys.checkSecret must name a Secret with a key")
    if status != 200:
        return 1
    (result,) = json.loads(content)["results"]
    return 0 if result["status"] == "ok" and result["predictions"][0]["label"] else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2])))
