"""`python -m benchmarks.recovery`: how soon a gateway that was started without a Triton serves once there is one."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from benchmarks.__main__ import ROOT
from gateway.triton.local import LocalTriton, Ports, free_ports

ROUNDS = 5


def main() -> None:
    seconds = [measure() for _ in range(ROUNDS)]
    print(f"from Triton's readiness to the first answer: median {statistics.median(seconds):.2f} s, ", end="")
    print(f"longest of {ROUNDS} {max(seconds):.2f} s")


def measure() -> float:
    port, *ports = free_ports(4)
    photo = (ROOT / "examples" / "photos" / "cat.jpg").read_bytes()
    url = f"http://127.0.0.1:{port}/v1/classify"
    triton = LocalTriton([ROOT / "model_repository"], ports=Ports(*ports))
    env = {**os.environ, "TIDEGATE_PORT": str(port), "TIDEGATE_TRITON_URL": triton.url}
    command = [sys.executable, "-m", "gateway.cli", "serve"]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as gateway:
        time.sleep(10)  # long enough for the channel to have backed off as far as it does
        try:
            with triton:
                triton.wait_ready()
                start = time.monotonic()
                while not answers(url, photo):
                    time.sleep(0.02)
                return time.monotonic() - start
        finally:
            gateway.terminate()


def answers(url: str, photo: bytes) -> bool:
    try:
        with urllib.request.urlopen(url, data=photo, timeout=10):  # noqa: S310  # our own address
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
