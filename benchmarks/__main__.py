"""`python -m benchmarks`: contenders side by side in one run, with the same photos and the same load.

Each contender is started with its defaults, then they take turns, round after round; the table has medians over
the rounds. The figures of a shared machine are noisy: the ratios are what counts. Writes JSON beside the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import stacks
from benchmarks.load import closed_loop, multipart, post

ROOT = Path(__file__).parents[1]
PHOTOS = ROOT.parent / "shared" / "data" / "photos"
CONTENDERS = {
    "tidegate": stacks.tidegate,
    "plain": stacks.plain,
    "plain-our-decoder": stacks.plain_with_our_decoder,
}


@dataclass(frozen=True)
class Round:
    """One contender's round."""

    contender: str
    clients: int
    images_per_s: float
    cpu_ms_per_image: float
    p50_ms: float
    p95_ms: float
    failures: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=PHOTOS if PHOTOS.is_dir() else ROOT / "examples" / "photos")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=1000, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "single-photos.json")
    options = parser.parse_args()
    files = sorted(options.photos.glob("*.jpg"))
    rounds: list[Round] = []
    with ExitStack() as stack:
        running = [stack.enter_context(CONTENDERS[name]()) for name in options.contenders]
        for contender in running:
            measure(contender, files, options.clients, options.requests // 4)  # warm
        for _ in range(options.rounds):
            for contender in running:
                rounds.append(measure(contender, files, options.clients, options.requests))
                print(rounds[-1], flush=True)
    report(rounds, options.out, str(options.photos.name), len(files))


def measure(contender: stacks.Stack, files: Sequence[Path], clients: int, total: int) -> Round:
    requests = [post(contender.path, *multipart(file.read_bytes())) for file in files]
    before = contender.cpu_seconds()
    load = asyncio.run(closed_loop(contender.port, requests, clients, total))
    cpu = contender.cpu_seconds() - before
    quantiles = statistics.quantiles(load.latencies, n=100)
    return Round(
        contender.name,
        clients,
        total / load.seconds,
        cpu / total * 1000,
        quantiles[49] * 1000,
        quantiles[94] * 1000,
        load.failures,
    )


def report(rounds: Sequence[Round], out: Path, photos: str, count: int) -> None:
    print("| contender | images/s | CPU-ms an image | p50 ms | p95 ms | failures |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(r.contender for r in rounds):
        own = [r for r in rounds if r.contender == name]

        def middle(field: str, own: Sequence[Round] = own) -> float:
            return float(statistics.median(getattr(r, field) for r in own))

        print(
            f"| {name} | {middle('images_per_s'):.0f} | {middle('cpu_ms_per_image'):.1f} "
            f"| {middle('p50_ms'):.0f} | {middle('p95_ms'):.0f} | {sum(r.failures for r in own)} |"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": platform.processor() or platform.machine(), "photos": photos, "files": count}
    out.write_text(json.dumps({"about": about, "rounds": [asdict(r) for r in rounds]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
