"""Clients in a closed loop, straight to Triton over gRPC; every answer is checked."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from build_engines.configs import Entry
from build_engines.errors import TuneError
from build_engines.images import SUFFIXES
from build_engines.sources import OUTPUTS
from build_engines.tuning.choice import InvalidError, Point

Rows = npt.NDArray[np.float32]

MOST_PHOTOS = 256

# Two answers for one photo are the same when no other class leads by more than this: batches of other sizes
# may round in another way.
_TIE = 0.01
_SUM_TOLERANCE = 0.01
_COSINE = 0.999

# Answers of each measurement, however long they take: fewer have no p95.
_FEWEST = 20

_CALL_TIMEOUT_S = 60.0
_UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True)
class Photos:
    """Prepared requests, one image in each."""

    names: tuple[str, ...]
    requests: tuple[Any, ...]
    task: str


def read_photos(path: Path, entry: Entry) -> Photos:
    """Requests for a file, or the files of a folder in the order of their names; `TuneError` if there are none."""
    files = sorted(each for each in path.glob("*") if each.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    try:
        requests = tuple(_request(entry, file.read_bytes()) for file in files[:MOST_PHOTOS])
    except OSError as error:
        raise TuneError(
            f"The photos in {path} cannot be read ({error.strerror}): name others with --images."
        ) from error
    if not requests:
        raise TuneError(f"There are no photos in {path}: name a folder of photos with --images.")
    return Photos(tuple(file.name for file in files[:MOST_PHOTOS]), requests, entry.task)


def _request(entry: Entry, file: bytes) -> Any:
    request = service_pb2.ModelInferRequest(model_name=entry.model)
    request.inputs.add(name="RAW_IMAGE", datatype="UINT8", shape=[1, len(file)])
    request.inputs.add(name="IMAGE_LENGTH", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.extend([file, np.int32(len(file)).astype("<i4").tobytes()])
    for name in (OUTPUTS[entry.task], "IMAGE_STATUS"):
        request.outputs.add(name=name)
    return request


@dataclass(frozen=True)
class Load:
    """How to measure."""

    clients: Sequence[int]
    """One measurement for each: so many requests are in flight at any time."""
    seconds: float
    """Of each measurement, at least."""
    warmup_s: float
    """Before the first one; a quarter of it before each of the others."""


def measure(url: str, photos: Photos, load: Load, expected: Rows | None) -> tuple[tuple[Point, ...], Rows]:
    """What the server at `url` does under each load, and its answers: FP32 [photos, width].

    With `expected`, the answers must be those. Raises `InvalidError` when a request fails or an answer is wrong.
    """
    return asyncio.run(_measure(url, photos, load, expected))


async def _measure(url: str, photos: Photos, load: Load, expected: Rows | None) -> tuple[tuple[Point, ...], Rows]:
    async with grpc.aio.insecure_channel(url, options=_UNLIMITED) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            first = []
            for name, request in zip(photos.names, photos.requests, strict=True):
                first.append(_row(name, await stub.ModelInfer(request, timeout=_CALL_TIMEOUT_S)))
            rows = np.stack(first)
            right = rows if expected is None else expected

            def check(index: int, answer: Any) -> None:
                name = photos.names[index]
                check_row(name, _row(name, answer), right[index], photos.task)

            for index, row in enumerate(rows):
                check_row(photos.names[index], row, right[index], photos.task)

            points = []
            for index, clients in enumerate(load.clients):
                ramp = load.warmup_s if index == 0 else load.warmup_s / 4
                points.append(await _closed_loop(stub, photos.requests, check, clients, ramp, load.seconds))
        except grpc.aio.AioRpcError as error:
            raise InvalidError(f"a request failed: {error.code().name}, {error.details()}") from error
    return tuple(points), rows


async def _closed_loop(
    stub: Any,
    requests: Sequence[Any],
    check: Callable[[int, Any], None],
    clients: int,
    ramp_s: float,
    seconds: float,
) -> Point:
    """Each client sends the next request when it has its answer; those that end after the ramp are counted."""
    turns = itertools.cycle(range(len(requests)))
    latencies: list[float] = []
    start = time.perf_counter() + ramp_s
    end = start + seconds

    async def client() -> None:
        nonlocal end
        while (sent := time.perf_counter()) < end or len(latencies) < _FEWEST:
            index = next(turns)
            answer = await stub.ModelInfer(requests[index], timeout=_CALL_TIMEOUT_S)
            now = time.perf_counter()
            check(index, answer)
            if start <= now and (now < end or len(latencies) < _FEWEST):
                latencies.append(now - sent)
                end = max(end, now)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Point(
        clients=clients,
        rate=len(latencies) / (end - start),
        p50_ms=percentile(latencies, 50) * 1000,
        p95_ms=percentile(latencies, 95) * 1000,
        answers=len(latencies),
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that `percent` of 100 do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _row(name: str, answer: Any) -> Rows:
    """The answer for a request's only image: FP32 [width]; `InvalidError` unless its status is 0."""
    outputs = {output.name: content for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    status = int(np.frombuffer(outputs.pop("IMAGE_STATUS"), "<i4")[0])
    if status != 0:
        raise InvalidError(f"{name} got IMAGE_STATUS {status} instead of an answer")
    (content,) = outputs.values()
    return np.frombuffer(content, "<f4")


def check_row(name: str, row: Rows, expected: Rows, task: str) -> None:
    """Raises `InvalidError` unless the answer for the photo `name` is what it should be.

    Probabilities must sum to 1 and have the same top-1; features must point the same way.
    """
    if not np.isfinite(row).all():
        raise InvalidError(f"the answer for {name} is not a number")
    if task == "classify":
        if abs(float(row.sum()) - 1) > _SUM_TOLERANCE:
            raise InvalidError(f"the probabilities of {name} sum to {row.sum():.3f}, not 1")
        if float(row.max() - row[expected.argmax()]) > _TIE:
            raise InvalidError(f"the top-1 of {name} is class {row.argmax()}, and {expected.argmax()} before")
    else:
        cosine = float(row @ expected) / max(float(np.linalg.norm(row) * np.linalg.norm(expected)), 1e-12)
        if cosine < _COSINE:
            raise InvalidError(f"the feature of {name} is another one than before (cosine {cosine:.4f})")
