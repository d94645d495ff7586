"""A short run of the chaos suite; `python -m tests.chaos` makes a long one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.triton.local import LocalTritonError, find_installation
from tests.servers import ROOT


def test_nothing_that_breaks_costs_a_right_answer() -> None:
    """20 seconds of faults: right answers or documented errors in time, and all well again afterwards."""
    try:
        find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "20", "--rate", "15", "--late", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
