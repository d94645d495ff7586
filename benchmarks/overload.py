"""`python -m benchmarks.overload`: what is answered, and how fast the rest is refused, beyond what Triton carries.

A real Triton with a classifier that takes 20 ms for each picture, so 50 a second whatever the machine, and cores that
are free for the gateway: as with a GPU that is full. Pictures arrive at random times, at 0.5 to 10 times that rate.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.load import post
from benchmarks.observed import open_loop
from benchmarks.stacks import Stack, running
from gateway.triton.local import LocalTriton, Ports, free_ports
from tests.pictures import encode, solid
from tests.probe import write_probe_repository

CAPACITY = 50.0
"""Pictures a second."""
SLOW = encode(solid((13, 13, 2)))  # 20 ms; tests/triton/models/probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each load (default: %(default)s)")
    parser.add_argument("--loads", type=float, nargs="*", default=[0.5, 1, 2, 5, 10], help="times what Triton carries")
    options = parser.parse_args()
    request = post("/v1/classify?model=probe_ensemble", SLOW, "image/png")
    print("| load | sent/s | answered/s | of the capacity | p50 s | p95 s | refused | refusals p99 ms | other |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with slow_triton() as stack:
        for load in options.loads:
            outcome = asyncio.run(open_loop(stack.port, [request], load * CAPACITY, options.seconds))
            rate = len(outcome.latencies) / outcome.seconds
            p50, p95 = np.percentile(outcome.latencies, [50, 95])
            refusal = np.percentile(outcome.refusals, 99) * 1000 if outcome.refusals else 0
            print(
                f"| {load:g} × | {load * CAPACITY:.0f} | {rate:.1f} | {rate / CAPACITY:.0%} | {p50:.2f} | {p95:.2f} "
                f"| {outcome.refused} | {refusal:.0f} | {outcome.failures} |",
                flush=True,
            )


@contextmanager
def slow_triton() -> Iterator[Stack]:
    """The gateway in front of the probe classifier."""
    with tempfile.TemporaryDirectory() as folder:
        port, http, grpc, metrics = free_ports(4)
        with LocalTriton([write_probe_repository(Path(folder))], ports=Ports(http, grpc, metrics)) as triton:
            triton.wait_ready()
            env = {
                "TIDEGATE_PORT": str(port),
                "TIDEGATE_TRITON_URL": triton.url,
                "TIDEGATE_DEFAULT_MODEL": "probe_ensemble",
            }
            command = [sys.executable, "-m", "gateway.cli", "serve"]
            with running("tidegate", "/v1/classify", "/readyz", port, command, env) as stack:
                yield stack


if __name__ == "__main__":
    main()
