"""`python -m benchmarks.hostile`: good photos among everything that a hostile world sends, for a long time.

Starts `tidegate up` with two workers and sends a seeded mix: photos in every form, damaged pictures, fuzzed forms,
JSON and heads, chunks, wrong lengths, bombs of pixels, slow clients and those that leave. What must hold: no status of
500 and above; every photo has the very answer that it has alone; no process ends; no traceback in a log; memory and
file descriptors stay flat. Prints a table; the exit code is 1 if something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from benchmarks.__main__ import ROOT
from gateway.triton.local import free_ports
from tests.fuzz.mutations import damaged
from tests.fuzz.targets import load

MIB = 1024 * 1024
PATH = "/v1/classify?top_k=20"
SETTINGS = {"WORKERS": "2", "HEAD_TIMEOUT_S": "3", "BODY_IDLE_TIMEOUT_S": "2", "LOG_FORMAT": "plain"}
PATIENCE_S = 30.0
SAMPLES = 50  # of memory, over the whole run
GROWTH, GROWTH_BYTES = 1.15, 24 * MIB  # from the second to the last fifth of the run; allocators are not exact
DESCRIPTORS = 8
THREADS = 32  # pools of threads fill when they are needed
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
Predictions = list[dict[str, Any]]


class Broken(Exception):
    """Something that must hold does not."""


@dataclass
class Run:
    """What all clients share."""

    port: int
    photos: dict[str, bytes]
    right: dict[str, Predictions] = field(default_factory=dict)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    left: int = 0
    look: Callable[[], None] = lambda: None
    look_every: int = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.requests < 20 * SAMPLES:
        parser.error(f"fewer than {20 * SAMPLES} requests say nothing about memory")
    with tidegate() as (process, port, log):
        run = Run(port, photos(), left=options.requests)
        start = time.monotonic()
        watch = Watch(process)
        asyncio.run(everybody(run, options.clients, options.seed, watch))
        print(f"{options.requests:,} requests in {time.monotonic() - start:.0f} s\n")
        report(run)
        run.broken += watch.report() + tracebacks(log)
    for words, times in Counter(run.broken).most_common():
        print(f"BROKEN, {times} times: {words}")
    return 1 if run.broken else 0


@contextmanager
def tidegate() -> Iterator[tuple[psutil.Process, int, Path]]:
    """The process of `tidegate up`, its port and its log."""
    port, http, grpc, metrics = free_ports(4)
    ports = {"PORT": port, "TRITON_HTTP_PORT": http, "TRITON_GRPC_PORT": grpc, "TRITON_METRICS_PORT": metrics}
    env = {**os.environ, **{f"TIDEGATE_{key}": str(value) for key, value in {**SETTINGS, **ports}.items()}}
    with tempfile.TemporaryDirectory(prefix="tidegate-hostile-") as folder:
        log = Path(folder) / "tidegate.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "up"], cwd=ROOT, env=env, stdout=out, stderr=out
            )
        try:
            deadline = time.monotonic() + 120
            while b"Ctrl-C stops everything" not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"tidegate up did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield psutil.Process(process.pid), port, log
        finally:
            process.terminate()
            process.wait(60)


def photos() -> dict[str, bytes]:
    """Small files of every kind, made of the sample photos."""
    files = {}
    for path in sorted((ROOT / "examples" / "photos").glob("*.jpg")):
        small = Image.open(path).resize((120, 90))
        for kind, options in (
            ("JPEG", {}),
            ("PNG", {}),
            ("WEBP", {}),
            ("GIF", {}),
            ("BMP", {}),
            ("AVIF", {"speed": 10}),
        ):
            file = io.BytesIO()
            small.save(file, kind, **options)
            files[f"{path.stem} {kind}"] = file.getvalue()
    return files


async def everybody(run: Run, clients: int, seed: int, watch: Watch) -> None:
    """All clients until nothing is left to send; a look at the processes now and then."""
    for name, file in run.photos.items():
        async with Connection(run.port) as connection:
            run.right[name] = predictions(await connection.ask(post(file, "image/jpeg")))[0]
    total = run.left
    watch.look_at_descriptors()
    run.look, run.look_every = watch.look, max(1, total // SAMPLES)
    await asyncio.gather(*(client(run, random.Random(f"{seed} {i}")) for i in range(clients)))  # noqa: S311  # a load
    await asyncio.sleep(float(SETTINGS["HEAD_TIMEOUT_S"]) + 1)  # what was left open is closed by now
    watch.look_at_descriptors()


async def client(run: Run, rng: random.Random) -> None:
    names, weights = list(ACTS), [weight for weight, _ in ACTS.values()]
    while run.left > 0:
        run.left -= 1
        if run.left % run.look_every == 0:
            run.look()
        (name,) = rng.choices(names, weights)
        try:
            outcome = await asyncio.wait_for(ACTS[name][1](run, rng), PATIENCE_S)
        except (asyncio.TimeoutError, OSError, asyncio.IncompleteReadError, Broken) as error:
            outcome = "broken"
            run.broken.append(f"{name}: {type(error).__name__} {error}"[:300])
        run.seen[name, outcome] += 1


class Connection:
    """One connection; requests are bytes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Connection:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body; the status is below 500."""
        self.writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        body = await self._reader.readexactly(int(length[1])) if length else b""
        return statuses(head, body)[0], body

    async def shout(self, request: bytes, patience_s: float = 0.3) -> str:
        """The status of the first answer, if one comes: the request may be none."""
        self.writer.write(request)
        with suppress(OSError, asyncio.TimeoutError):
            answer = await asyncio.wait_for(self._reader.read(1 << 16), patience_s)
            return str(next(iter(statuses(answer)), "closed"))
        return "silence"


def statuses(head: bytes, body: bytes = b"") -> list[int]:
    """Those of the answers in `head`; raises Broken at 500 and above."""
    found = [int(status) for status in STATUS.findall(head)]
    if any(status >= 500 for status in found):
        raise Broken(f"{(head.splitlines()[0] + b' ' + body[:150]).decode('latin-1')}")
    return found


def post(body: bytes, kind: str, more: str = "", length: int | None = None) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{more}"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode("latin-1") + body


def form(files: list[bytes]) -> tuple[bytes, str]:
    head = b'--xQx\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--xQx--\r\n", "multipart/form-data; boundary=xQx"


def predictions(answer: tuple[int, bytes]) -> list[Predictions]:
    """One list for each image, empty for one that was refused."""
    status, body = answer
    if status not in (200, 422):
        raise Broken(f"{status} {body[:200]!r}")
    return [result.get("predictions", []) for result in json.loads(body).get("results", [])]


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"another answer than alone: {str(found)[:80]} instead of {str(wanted)[:80]}")


# What clients do. Each returns in a word what came of it.


async def good(run: Run, rng: random.Random) -> str:
    """One photo in one of the forms."""
    name = rng.choice(list(run.photos))
    file = run.photos[name]
    document = json.dumps({"images": [{"data": base64.b64encode(file).decode()}]}).encode()
    body, kind = rng.choice(((file, "image/png"), form([file]), (document, "application/json")))
    async with Connection(run.port) as connection:
        for _ in range(rng.choice((1, 1, 3))):
            expect(predictions(await connection.ask(post(body, kind))), [run.right[name]])
    return "right"


async def among_bad_ones(run: Run, rng: random.Random) -> str:
    """Photos and damaged pictures in one form."""
    names = [rng.choice([None, *run.photos]) for _ in range(rng.randint(2, 6))] + ["cat JPEG"]
    files = [run.photos[name] if name else picture(run, rng) for name in names]
    async with Connection(run.port) as connection:
        found = predictions(await connection.ask(post(*form(files))))
    expect(len(found), len(names))
    for answer, name in zip(found, names, strict=True):
        if name:
            expect(answer, run.right[name])
    return "right"


def picture(run: Run, rng: random.Random) -> bytes:
    data = rng.choice(rng.choice((list(run.photos.values()), _pictures.seeds())))
    for _ in range(rng.randint(1, 3)):
        data = _pictures.mutate(data, rng)
    return data


async def damaged_picture(run: Run, rng: random.Random) -> str:
    async with Connection(run.port) as connection:
        status, body = await connection.ask(post(picture(run, rng), "image/jpeg"))
    if status not in (200, 422):
        raise Broken(f"{status} {body[:200]!r}")
    return str(status)


async def bomb(run: Run, rng: random.Random) -> str:
    """A picture of far too many pixels, or of as many as are allowed with nothing behind the header."""
    side = rng.choice((7999, 20_000, 2**31 - 1))
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(5000))
    file = b"\x89PNG\r\n\x1a\n"
    for chunk in (head, data, b"IEND"):
        file += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    async with Connection(run.port) as connection:
        status, _ = await connection.ask(post(file, "image/png"))
    expect(status, 422)
    return str(status)


async def fuzzed_form(run: Run, rng: random.Random) -> str:
    kind, _, body = _forms.mutate(rng.choice(_forms.seeds()), rng).partition(b"\n")
    words = kind.decode("latin-1").replace("\r", "")
    async with Connection(run.port) as connection:
        return await connection.shout(post(body, words), PATIENCE_S)


async def fuzzed_json(run: Run, rng: random.Random) -> str:
    body = _documents.mutate(rng.choice(_documents.seeds()), rng)
    async with Connection(run.port) as connection:
        status, _ = await connection.ask(post(body, "application/json"))
    return str(status)


async def fuzzed_head(run: Run, rng: random.Random) -> str:
    """Any bytes before, in and behind a request."""
    request = post(
        run.photos["cat GIF"], "image/gif", rng.choice(("", "Expect: 100-continue\r\n", "Transfer-Encoding: x\r\n"))
    )
    request = rng.choice((b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")) + request
    async with Connection(run.port) as connection:
        return await connection.shout(damaged(request[:200], rng, _HEAD_TOKENS) + request[200:])


async def chunked(run: Run, rng: random.Random) -> str:
    """A photo in chunks; half of the time with a mistake in them."""
    name = rng.choice(list(run.photos))
    file, pieces = run.photos[name], []
    while file:
        size = rng.randint(1, 3000)
        pieces.append(f"{len(file[:size]):x}\r\n".encode() + file[:size] + b"\r\n")
        file = file[size:]
    body = b"".join([*pieces, b"0\r\n\r\n"])
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with Connection(run.port) as connection:
        if rng.random() < 0.5:
            return await connection.shout(head + damaged(body, rng, _HEAD_TOKENS))
        expect(predictions(await connection.ask(head + body)), [run.right[name]])
    return "right"


async def wrong_length(run: Run, rng: random.Random) -> str:
    file = run.photos["cat JPEG"]
    length = rng.choice((0, 1, len(file) - 5, len(file) + 5, 65 * MIB, 10**30))
    async with Connection(run.port) as connection:
        return await connection.shout(post(file, "image/jpeg", length=length))


async def leaving(run: Run, rng: random.Random) -> str:
    """Gone in the middle of the body, or right behind it."""
    file = run.photos["rocket PNG"]
    async with Connection(run.port) as connection:
        connection.writer.write(post(file, "image/png")[: rng.randint(1, len(file) + 200)])
        await asyncio.sleep(rng.choice((0, 0.01)))
        if rng.random() < 0.5:
            connection.writer.transport.abort()
    return "left"


async def slow(run: Run, rng: random.Random) -> str:
    """A few bytes at a time, until the request is whole, the client is fed up or the gateway is."""
    request = post(run.photos["cat JPEG"], "image/jpeg")
    async with Connection(run.port) as connection:
        for _ in range(rng.randint(1, 20)):
            with suppress(OSError):
                connection.writer.write(request[:20])
            request = request[20:]
            await asyncio.sleep(0.2)
        return await connection.shout(request, 5)


_pictures, _forms, _documents = load("imaging"), load("form"), load("json_body")
_HEAD_TOKENS = (
    *(
        b"\r\n",
        b"\n",
        b"\0",
        b"\xff",
        b":",
        b" ",
        b"\t",
        b"HTTP/1.0",
        b"HTTP/9.9",
        b"PUT",
        b"%00",
        b"%ff",
        b"?top_k=-1&",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"f" * 17),
    *(b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"X: " + b"y" * 70_000, b"Host: \r\n"),
    *(b"X-Request-Timeout: nan\r\n", b"X-Request-ID: \xe9\r\n"),
)

Act = Callable[[Run, random.Random], Awaitable[str]]
ACTS: dict[str, tuple[int, Act]] = {
    "photo": (18, good),
    "photos among bad ones": (6, among_bad_ones),
    "damaged picture": (36, damaged_picture),
    "bomb of pixels": (1, bomb),
    "fuzzed form": (12, fuzzed_form),
    "fuzzed JSON": (10, fuzzed_json),
    "fuzzed head": (5, fuzzed_head),
    "chunks": (5, chunked),
    "wrong length": (2, wrong_length),
    "leaving": (4, leaving),
    "slow": (1, slow),
}


class Watch:
    """Memory, descriptors and threads of a process and all its descendants, from the second fifth of the run on."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._looks: list[dict[psutil.Process, int]] = []
        self._descriptors: list[dict[psutil.Process, int]] = []
        self._threads: list[dict[psutil.Process, int]] = []

    def _each(self, measure: Callable[[psutil.Process], int]) -> dict[psutil.Process, int]:
        """By process; psutil compares them by id and time of birth."""
        found = {}
        for process in (self._root, *self._root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                found[process] = measure(process)
        return found

    def look(self) -> None:
        self._looks.append(self._each(lambda process: int(process.memory_info().rss)))

    def look_at_descriptors(self) -> None:
        """And threads."""
        self._descriptors.append(self._each(lambda process: int(process.num_fds())))
        self._threads.append(self._each(lambda process: int(process.num_threads())))

    def report(self) -> list[str]:
        """A table; what is wrong with it."""
        fifth = SAMPLES // 5
        fifths = [self._looks[i * fifth : (i + 1) * fifth] for i in range(1, 5)]
        wrong = []
        known = set(fifths[0][0])
        came = {process for look in self._looks[fifth:] for process in look.keys() - known}
        ended = {process for look in self._looks[fifth:] for process in (known | came) - self._looks[-1].keys()}
        if other := ended | {process for process in came - ended if "decoder.py" not in " ".join(process.cmdline())}:
            wrong.append(f"processes that ended or came: {other}")  # decoders come when they are needed
        print(
            "| process | MiB in the 2nd fifth | 3rd | 4th | 5th | descriptors before | after | threads before | after |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        before, after = self._descriptors
        threads, threads_after = self._threads
        for process in sorted(fifths[0][0].keys() - other, key=lambda p: int(p.pid)):
            sizes = [statistics.median(look[process] for look in looks) for looks in fifths]
            name = " ".join(Path(word).name for word in process.cmdline()[:4])[:40]
            row = [f"{process.pid} {name}", *(f"{size / MIB:.1f}" for size in sizes)]
            counts = (before.get(process, ""), after[process], threads.get(process, ""), threads_after[process])
            print(f"| {' | '.join([*row, *map(str, counts)])} |")
            if sizes[-1] > GROWTH * sizes[0] + GROWTH_BYTES:
                wrong.append(f"the memory of {name} grows")
            if after[process] > before.get(process, after[process]) + DESCRIPTORS:
                wrong.append(f"the descriptors of {name} grow")
            if threads_after[process] > threads.get(process, threads_after[process]) + THREADS:
                wrong.append(f"the threads of {name} grow")
        print()
        return wrong


def report(run: Run) -> None:
    print("| sent | outcomes |\n| --- | --- |")
    for act in ACTS:
        outcomes = sorted((outcome, times) for (name, outcome), times in run.seen.items() if name == act)
        print(f"| {act} | {', '.join(f'{outcome}: {times:,}' for outcome, times in outcomes)} |")
    print()


def tracebacks(log: Path) -> list[str]:
    """Of the gateway's log, and of Triton's, whose place the first one says."""
    text = log.read_text(errors="replace")
    place = re.search(r"its log: (\S+)", text)
    if place:
        text += Path(place[1]).read_text(errors="replace")
    lines = text.splitlines()
    telling = [
        i
        for i, line in enumerate(lines)
        if "Traceback" in line or "never retrieved" in line or "preprocessor: " in line
    ]
    for i in telling[:3]:
        print("\n".join(lines[max(0, i - 2) : i + 25]), "\n")
    return [f"{len(telling)} tracebacks in the logs"] if telling else []


if __name__ == "__main__":
    sys.exit(main())
