"""`python -m benchmarks.memory`: the gateway's resident memory over many requests.

Photos go through the whole stack (20,000 take about four minutes on two cores); what is measured is the gateway's
process alone.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import psutil

from benchmarks import stacks
from benchmarks.__main__ import PHOTOS, ROOT
from benchmarks.load import closed_loop, multipart, post

MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOS if PHOTOS.is_dir() else ROOT / "examples" / "photos")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    files = [file.read_bytes() for file in sorted(options.photos.glob("*.jpg"))]
    with stacks.tidegate() as stack:
        gateway = psutil.Process(stack.pid)
        requests = [post(stack.path, *multipart(file)) for file in files]
        print("| requests | resident MiB | file descriptors | failures |\n| --- | --- | --- | --- |")
        sent = failures = 0
        for _ in range(options.steps):
            load = asyncio.run(closed_loop(stack.port, requests, 32, options.requests // options.steps))
            sent, failures = sent + options.requests // options.steps, failures + load.failures
            memory = gateway.memory_info().rss / MIB
            print(f"| {sent:,} | {memory:.1f} | {gateway.num_fds()} | {failures} |", flush=True)


if __name__ == "__main__":
    main()
