"""The command `tidegate`: one file for each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gateway import __version__
from gateway.settings import SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand; the exit code is 0 when it did what was asked, 1 when not, 2 for a wrong usage."""
    from gateway.cli import embed, keys, serve, triton, up  # a command's imports are paid when it is used

    parser = argparse.ArgumentParser(prog="tidegate", description="A gate in front of NVIDIA Triton.")
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (up, serve, triton, keys, embed):
        command.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except SettingsError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    return code
