"""Features of many images into one file: the whole of `tidegate embed`, without its command line."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.bulk import Plan, Run
from tidegate.client import Client, Model
from tidegate.errors import InputsError, Problem, SpoolError
from tidegate.features import SUFFIXES, partial_file, write_features
from tidegate.inputs import Skipped, Sources
from tidegate.progress import Display, Silent, Tally, count_ahead
from tidegate.spool import Spool, discard, removed_folder

UNIT_WITHIN = 1e-3
"""How far from 1 the length of features may be that are of unit length."""


@dataclass(frozen=True)
class Embed:
    """The task: FP32 `[dim]` of each image, of unit length with `normalize`. None is the gateway's own choice."""

    model: str | None = None
    model_version: str | None = None
    normalize: bool = False

    @property
    def route(self) -> str:
        return "/v1/embed"

    @property
    def fields(self) -> dict[str, str]:
        asked = {"model": self.model, "version": self.model_version, "encoding_format": "base64"}
        asked["normalize"] = "true" if self.normalize else None
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def plan(self) -> dict[str, str]:
        """What two runs must have in common for their features to mix."""
        return {"task": "embed", **self.fields}

    def kept(self, result: Mapping[str, Any], model: Model) -> bytes | Problem:
        """FP32 `[dim]`, little-endian."""
        values = _values(result.get("embedding"))
        if len(values) != model.dim:
            raise ValueError(f"its dim is {model.dim}, and it sent {len(values)} values")
        if not np.isfinite(values).all():
            return Problem("bad_answer", "Some of the features that the gateway sent are no numbers.", passing=True)
        length = float(np.linalg.norm(values.astype(np.float64)))
        if self.normalize and abs(length - 1) > UNIT_WITHIN:
            raise ValueError(f"unit length was asked for, and it sent features of length {length:.4g}")
        return values.tobytes()


def _values(given: object) -> NDArray[np.float32]:
    """FP32 `[n]` of base64, or of a list of numbers, from outside. Raises `ValueError`."""
    if isinstance(given, str):
        try:
            return np.frombuffer(base64.b64decode(given, validate=True), dtype="<f4")
        except ValueError:
            raise ValueError("it sent features that are no base64 of FP32") from None
    if not isinstance(given, list) or not all(type(value) in (int, float) for value in given):
        raise ValueError("it sent a result that is ok and has no features")
    try:
        with np.errstate(over="ignore"):
            return np.array(given, dtype="<f4")
    except OverflowError:
        raise ValueError("it sent features that no FP32 can hold") from None


@dataclass(frozen=True)
class Job:
    """What to extract, from where, to where.

    `resume`: go on with what an earlier run left, if it left anything. `overwrite`: begin anew, whatever is there.
    """

    sources: Sources
    out: Path
    url: str
    key: str | None = field(default=None, repr=False)
    task: Embed = field(default_factory=Embed)
    plan: Plan = field(default_factory=Plan)
    timeout_s: float = 60.0
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class Summary:
    """What came of it: rows in the file, of which `failed` have no features; `problems` are (code, rows, first path).

    `sent` rows are of this run, in `seconds`, the rest was known. `passing` of the failed may fare better another time;
    the spool is kept for them.
    """

    rows: int
    failed: int
    sent: int
    seconds: float
    model: Model | None
    problems: Sequence[tuple[str, int, str]]
    skipped: Skipped
    passing: int
    spool: Path


def spool_folder(out: Path) -> Path:
    """Where a run for `out` keeps what it knows so far."""
    return out.with_name(out.name + ".spool")


def is_finished(job: Job) -> bool:
    """Whether `out` is there and no run for it was left unfinished."""
    return job.out.exists() and not spool_folder(job.out).exists()


def extract(job: Job, display: Display | None = None) -> Summary:
    """Sends all inputs, and writes `job.out` when each has an answer or an error.

    Raises a `BulkError` when that cannot be; `out` is then as it was, and what was answered is in the spool.
    """
    if job.out.suffix not in SUFFIXES:
        raise ValueError(f"{job.out} must end in one of {', '.join(SUFFIXES)}")
    began = time.monotonic()
    folder = spool_folder(job.out)
    own = (job.out, partial_file(job.out), folder, removed_folder(folder))
    sources = Sources(job.sources.paths, job.sources.lists, frozenset(str(path.resolve()) for path in own))
    sources.check()
    spool = _open_spool(job)
    tally, skipped, display = Tally(), Skipped(), display or Silent()
    counting = count_ahead(sources, tally)
    kept = True
    try:
        try:
            asyncio.run(_send(job, sources, spool, tally, skipped, display))
        finally:
            counting.set()
            display.close()
            kept = spool.model is not None  # without any answer it is worth nothing
        if not spool.inputs():
            left_out = f" Not taken: {skipped}." if str(skipped) else ""
            raise InputsError(f"There is nothing to do: no file was found.{left_out}")
        write_features(spool, spool.model, job.out)
        problems, passing = spool.problems(), spool.passing()
        failed = sum(count for _, count, _ in problems)
        kept = passing > 0
        return Summary(
            rows=spool.inputs(),
            failed=failed,
            sent=tally.now,
            seconds=time.monotonic() - began,
            model=spool.model,
            problems=problems,
            skipped=skipped,
            passing=passing,
            spool=spool.folder,
        )
    finally:
        if kept:
            spool.close()
        else:
            spool.remove()


async def _send(job: Job, sources: Sources, spool: Spool, tally: Tally, skipped: Skipped, display: Display) -> None:
    connections = job.plan.concurrency or job.plan.ceiling
    async with Client(job.url, key=job.key, timeout_s=job.timeout_s, connections=connections) as client:
        await client.look()
        await Run(sources.walk(skipped), client, job.task, spool, job.plan, tally, display).run()


def _open_spool(job: Job) -> Spool:
    folder = spool_folder(job.out)
    if not job.out.parent.is_dir():
        raise SpoolError(f"There is no folder {job.out.parent}: make it first.")
    if not job.overwrite and not job.resume:
        if folder.exists():
            raise SpoolError(
                f"{folder} is what an earlier run left: go on with --resume, or begin anew with --overwrite."
            )
        if job.out.exists():
            raise SpoolError(f"{job.out} is there already: name another file, or replace it with --overwrite.")
    if job.overwrite:
        discard(folder)
    spool = Spool(folder)
    try:
        _check_plan(spool, job.task.plan)
    except BaseException:
        spool.close()
        raise
    return spool


def _check_plan(spool: Spool, asked: dict[str, str]) -> None:
    before, model = dict(spool.plan), spool.model
    if before and model is not None:  # who answered before may be asked for by name now
        answered = {"model": model.name, "version": model.version}
        before.update({name: value for name, value in answered.items() if name not in before and name in asked})
    if not before:
        spool.set_plan(asked)
    elif before != asked:
        differ = sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name))
        then = ", ".join(f"{name} {before.get(name, 'not given')}" for name in differ)
        raise SpoolError(
            f"The run that left {spool.folder} was asked for something else ({then}): ask for the same, or begin anew "
            "with --overwrite."
        )
