"""`python -m gateway.triton.leash COMMAND…` becomes COMMAND, which gets SIGTERM when its parent dies.

Without it, a gateway killed with SIGKILL would leave its Triton and its workers behind, holding the ports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Asks the kernel for SIGTERM when the thread that started this process ends; Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Becomes the command."""
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
