"""Speed and memory of an engine at several batch sizes, for its certificate.

An engine for the CPU is measured in a process of its own (`python -m build_engines.measure FOLDER …`), so that its
memory is its own; any other in this one, without a figure for memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import GateError

if TYPE_CHECKING:
    from build_engines.targets import Answers, Engine, Images

BATCHES = (1, 8, 32)
SECONDS = 0.4  # for each batch size, after one run that does not count
TIMEOUT_S = 600.0


def performance(engine: Engine, precision: str, size: int) -> Mapping[str, Any]:
    """`{"speed": [{"batch", "images_per_s", "ms"}, …], "memory_mib"}`: `ms` is the median time of one batch.

    `memory_mib` is the largest resident memory of a process that only runs the engine, Python included.
    """
    batches = [batch for batch in BATCHES if batch <= engine.serving.max_batch]
    if "engine.py" not in engine.files:
        return {"speed": _speeds(engine.run, SECONDS, size, batches)}
    with tempfile.TemporaryDirectory(prefix="tidegate-engine-") as folder:
        for name, content in engine.files.items():
            Path(folder, name).write_bytes(content)
        command = [sys.executable, "-m", "build_engines.measure", folder, precision]
        command += map(str, (SECONDS, size, *batches))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            reason = str(error.stderr or error).strip().splitlines()[-1]
            raise GateError(f"The engine cannot be measured ({reason}); nothing was published.") from error
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _speeds(
    run: Callable[[Images], Answers], seconds: float, size: int, batches: Sequence[int]
) -> list[dict[str, Any]]:
    import numpy as np

    pictures = np.random.default_rng(0).integers(0, 256, (max(batches), size, size, 3), np.uint8)
    speeds = []
    for batch in batches:
        run(pictures[:batch])
        times: list[float] = []
        while sum(times) < seconds or len(times) < 3:
            start = time.perf_counter()
            run(pictures[:batch])
            times.append(time.perf_counter() - start)
        speeds.append(
            {
                "batch": batch,
                "images_per_s": round(batch * len(times) / sum(times), 1),
                "ms": round(1e3 * sorted(times)[len(times) // 2], 2),
            }
        )
    return speeds


def _main(folder: str, precision: str, seconds: str, size: str, *batches: str) -> None:
    from build_engines.serving.model import load_engine

    engine = load_engine(Path(folder), len(os.sched_getaffinity(0)), precision)
    speeds = _speeds(engine, float(seconds), int(size), list(map(int, batches)))
    print(json.dumps({"speed": speeds, "memory_mib": _peak_mib()}))


def _peak_mib() -> int:
    """The largest resident memory of this process; not `getrusage`, which counts what the parent had at the fork."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024)
    raise RuntimeError("no VmHWM in /proc/self/status")


if __name__ == "__main__":
    _main(*sys.argv[1:])
