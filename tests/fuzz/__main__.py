"""`python -m tests.fuzz [TARGET …]`: looks for bytes that break a target's promises.

Each target runs as a process of its own, so that a crash of a C library is seen, too. What breaks a promise is
written to a file, with the command that shows it again. The exit code is 1 if there was any.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import NAMES, load, regressions

FOUND = Path(tempfile.gettempdir()) / "tidegate-fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--seconds", type=int, default=300, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--input", type=Path, help="check this file only, without the fuzzer")
    parser.add_argument("--found", type=Path, default=FOUND, help="folder for what breaks a promise")
    options = parser.parse_args()
    names = options.targets or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if options.input:
        for name in names:
            load(name).check(options.input.read_bytes())
        return 0
    return max([search(name, options.seconds, options.seed, options.found) for name in names])


def search(name: str, seconds: int, seed: int, found: Path) -> int:
    """1 if something was found within the time, else 0."""
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-corpus-") as corpus:
        for i, data in enumerate([*load(name).seeds(), *regressions(name).values()]):
            (Path(corpus) / f"{i}").write_bytes(data)
        command = [sys.executable, "-m", "tests.fuzz.driver", name, corpus, f"-artifact_prefix={found}/{name}-"]
        command += [f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=2500"]
        command += ["-max_len=65536", "-len_control=0", "-print_final_stats=1"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines = done.stdout.splitlines()
    runs = next((line.split()[-1] for line in lines if line.startswith("stat::number_of_executed_units")), "?")
    if done.returncode == 0:
        print(f"{name}: {runs} inputs, every promise kept", flush=True)
        return 0
    print("\n".join(lines[-60:]))
    print(f"{name}: a promise was broken. To see it again:")
    for line in lines:
        if "Test unit written to " in line:
            print(f"  python -m tests.fuzz {name} --input {line.split()[-1]}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
