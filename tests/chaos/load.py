"""Callers at a steady rate, who know the right answer to everything that they ask."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model_repository.test_guard import heavy
from tests.pictures import encode, noise, quadrants, solid

# Those of the contract that a fault of Triton or of a worker may cause; 500 is never one.
DOCUMENTED = {
    (502, "bad_upstream_response"),
    (503, "overloaded"),
    (503, "upstream_unavailable"),
    (503, "model_not_ready"),
    (504, "deadline_exceeded"),
}
BROKEN = "connection broken"
BOUNDARY = "chaos-0123456789"
Outcome = tuple[object, ...]


def pool() -> dict[str, bytes]:
    """Files by name: pictures whose answers differ, one that is decoded in a process of its own, and bad ones."""
    half = encode(noise(90, 90), "BMP")[:9000]
    shades = {f"shade {i}": encode(solid((i, 255 - i, 7 * i % 256), (20 + i, 40))) for i in range(16, 240, 16)}
    corners = {f"corners {i}": encode(quadrants((i, 0, 0), (0, i, 0), (0, 0, i), (i, i, 0)), "BMP") for i in (60, 250)}
    photos = {f"noise {i}": encode(noise(120 + i, 80, i), "JPEG") for i in range(4)}
    bad = {"text": b"no picture at all", "half": half, "empty": b""}
    return {**shades, **corners, **photos, "costly": heavy(900), **bad}


@dataclass(frozen=True)
class Asked:
    """One request: when (monotonic), what was sent, how long it took, what came back, and what is wrong with it."""

    at: float
    files: tuple[str, ...]
    timeout_s: float
    seconds: float
    outcome: str
    wrong: str = ""


@dataclass
class Callers:
    """Sends requests to a gateway on `port`; `right` is what each file is answered when it is asked alone."""

    port: int
    files: Mapping[str, bytes]
    seed: int
    late_s: float
    right: dict[str, Outcome] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    async def learn(self) -> None:
        """Fills `right`, before anything is broken."""
        for name, file in self.files.items():
            status, _, document = _parse(await self._exchange(_request("learn", [(name, file)], 10)))
            assert status in (200, 422), document
            self.right[name] = _outcome(document["results"][0])
        assert len(set(self.right.values())) == len(self.right), "two files have the same answer"

    async def ask_steadily(self, rate: float, stop: asyncio.Event) -> None:
        """Every request goes out at its time, however many are still unanswered."""
        rng = random.Random(self.seed)
        under_way: set[asyncio.Task[Asked]] = set()
        due = time.monotonic()
        while not stop.is_set():
            names = tuple(rng.choices(list(self.files), k=rng.randint(1, 8)))
            under_way.add(asyncio.create_task(self.ask(f"chaos-{len(self.asked)}", names, round(rng.uniform(1, 5), 1))))
            under_way = {task for task in under_way if not task.done()}
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*under_way)

    async def ask(self, request_id: str, names: Sequence[str], timeout_s: float) -> Asked:
        """One request, its answer, and whether it is right."""
        message = _request(request_id, [(name, self.files[name]) for name in names], timeout_s)
        begun = time.monotonic()
        outcome, wrong = BROKEN, ""
        try:
            status, headers, document = _parse(await asyncio.wait_for(self._exchange(message), timeout_s + 20))
            outcome = str(status) if status in (200, 422) else f"{status} {document.get('code')}"
            wrong = self._wrong(request_id, names, status, headers, document)
        except asyncio.TimeoutError:
            outcome = wrong = "no answer"
        except (OSError, asyncio.IncompleteReadError):
            pass  # whether it may break is judged with the list of faults
        except ValueError as error:
            wrong = f"not one whole answer: {error}"
        seconds = time.monotonic() - begun
        if not wrong and seconds > timeout_s + self.late_s:
            wrong = f"{outcome} after {seconds:.2f} s, and {timeout_s} s were allowed"
        asked = Asked(begun, tuple(names), timeout_s, seconds, outcome, wrong)
        self.asked.append(asked)
        return asked

    def outcomes(self) -> Counter[str]:
        return Counter(each.outcome for each in self.asked)

    async def _exchange(self, message: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(message)
            await writer.drain()
            answer = await reader.read(-1)
        finally:
            writer.close()
        if not answer:
            raise asyncio.IncompleteReadError(answer, None)
        return answer

    def _wrong(
        self, request_id: str, names: Sequence[str], status: int, headers: Mapping[str, str], document: dict[str, Any]
    ) -> str:
        """What is wrong with an answer; nothing if it is right, or a documented error."""
        if document.get("request_id") != request_id or headers.get("x-request-id") != request_id:
            return f"the answer to another request: {document.get('request_id')}"
        if status not in (200, 422):
            if (status, document.get("code")) not in DOCUMENTED:
                return f"{status} {document.get('code')} is not documented"
            return "" if status != 503 or int(headers.get("retry-after", 0)) >= 1 else "503 without Retry-After"
        for name, result in zip(names, document["results"], strict=True):
            if (found := _outcome(result)) != self.right[name]:
                return f"{name}: {found} in place of {self.right[name]}"
        usable = any(self.right[name][0] == "ok" for name in names)
        return "" if usable == (status == 200) else f"{status} with{'' if usable else 'out'} a usable image"


def _request(request_id: str, files: Sequence[tuple[str, bytes]], timeout_s: float) -> bytes:
    disposition = 'Content-Disposition: form-data; name="files"; filename="{}"'
    parts = [f"--{BOUNDARY}\r\n{disposition.format(name)}\r\n\r\n".encode() + file + b"\r\n" for name, file in files]
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    head = [
        "POST /v1/classify?top_k=12 HTTP/1.1",
        "Host: chaos",
        "Connection: close",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        f"Content-Length: {len(body)}",
        f"X-Request-Timeout: {timeout_s}",
        f"X-Request-ID: {request_id}",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def _parse(answer: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and document of what a connection gave; an `IncompleteReadError` if it broke off."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", -1))
    if length < 0 or len(body) < length:
        raise asyncio.IncompleteReadError(answer, None)
    if len(body) > length:
        raise ValueError(f"{len(body) - length} bytes behind it")
    return int(first.split()[1]), headers, json.loads(body)


def _outcome(result: dict[str, Any]) -> Outcome:
    if result["status"] == "error":
        return "error", result["error"]["code"], result["filename"]
    return "ok", *((p["label"], p["probability"]) for p in sorted(result["predictions"], key=lambda p: p["class_id"]))
