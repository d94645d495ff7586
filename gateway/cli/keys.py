"""`tidegate keys`: makes, lists and removes API keys in `TIDEGATE_API_KEYS_FILE`; gateways see it within a second."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path

from gateway.access.keys import KeysError, add_key, read_keys, remove_key
from gateway.settings import SettingsError, keys_file


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the subcommand."""
    file = argparse.ArgumentParser(add_help=False)
    file.add_argument("--file", type=Path, help="the file of keys; TIDEGATE_API_KEYS_FILE if not given")
    parser = commands.add_parser("keys", help="makes, lists and removes API keys", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", parents=[file], help="makes a key and prints it, once")
    add.add_argument("name", metavar="NAME", help="whose it is: letters, digits, dots, dashes, underscores")
    add.add_argument("--expires", type=_time, metavar="WHEN", help="such as 2027-01-31 or 2027-01-31T18:00+01:00; UTC")
    add.add_argument("--models", nargs="+", metavar="MODEL", help="the only models that it may ask; all if not given")
    add.set_defaults(run=_add)
    remove = actions.add_parser("remove", parents=[file], help="takes a key away")
    remove.add_argument("name", metavar="NAME")
    remove.set_defaults(run=_remove)
    actions.add_parser("list", parents=[file], help="names, expiries and models").set_defaults(run=_list)


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2027-01-31") from error
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def _add(options: argparse.Namespace) -> int:
    """The key goes to standard output and nowhere else, so that it can be piped to where it is kept."""
    models = tuple(options.models) if options.models else None
    try:
        entry, key = add_key(_file(options), options.name, options.expires, models)
    except KeysError as error:
        return _refused(error)
    print(key)
    print(f"This is the key of {entry.name}. It is stored nowhere, and is not shown again.", file=sys.stderr)
    return 0


def _remove(options: argparse.Namespace) -> int:
    try:
        remove_key(_file(options), options.name)
    except KeysError as error:
        return _refused(error)
    return 0


def _list(options: argparse.Namespace) -> int:
    try:
        entries = read_keys(_file(options)).keys
    except KeysError as error:
        return _refused(error)
    now = datetime.now(timezone.utc)
    rows = [("NAME", "ID", "CREATED", "EXPIRES", "MODELS")]
    for entry in entries:
        expires = "never" if entry.expires is None else entry.expires.isoformat(timespec="minutes")
        if entry.expires is not None and entry.expires <= now:
            expires += " (expired)"
        created = entry.created.date().isoformat()
        rows.append((entry.name, entry.id, created, expires, ", ".join(entry.models or ["all"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _file(options: argparse.Namespace) -> Path:
    file: Path | None = options.file or keys_file()
    if file is None:
        raise SettingsError("Which file? Set TIDEGATE_API_KEYS_FILE, or name it with --file.")
    return file


def _refused(error: KeysError) -> int:
    print(f"tidegate: {error}", file=sys.stderr)
    return 1
