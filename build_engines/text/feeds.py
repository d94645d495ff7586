"""RSS and Atom: fetched within limits, and read with feedparser."""

from __future__ import annotations

import html
import io
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from build_engines.errors import BuildError, TextSetError

MAX_BYTES = 10 << 20
TIMEOUT_S = 10.0
"""For a connection and for every wait of one."""
TOTAL_S = 60.0
_CHUNK = 64 << 10


@dataclass(frozen=True)
class Entry:
    """One entry of a feed: plain text, without the markup that feeds carry; "" for what is not there."""

    title: str
    text: str
    """Its summary, or its content where that is all there is."""
    link: str
    label: str
    """Its first category."""


def is_address(name: str) -> bool:
    """Whether it is an address, and not a file."""
    return "://" in name


def public_address(address: str) -> str:
    """Without a user's name, password, query and fragment: what may be shown to everyone."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise TextSetError(f"That is no address ({error}).") from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def fetch(address: str) -> bytes:
    """The content at an http or https address, at most `MAX_BYTES`; `TextSetError` when it cannot be had."""
    name = public_address(address)
    if urlsplit(address).scheme not in ("http", "https"):
        raise TextSetError(f"{name} is no http or https address: give one, or a file.")
    request = urllib.request.Request(address, headers={"User-Agent": "tidegate"})  # noqa: S310  # checked above
    until = time.monotonic() + TOTAL_S
    content = bytearray()
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            while chunk := answer.read1(_CHUNK):
                content += chunk
                if len(content) > MAX_BYTES:
                    raise TextSetError(f"{name} is larger than {MAX_BYTES >> 20} MiB, which no feed is.")
                if time.monotonic() > until:
                    raise TextSetError(f"{name} took longer than {TOTAL_S:.0f} s: try again later.")
    except (OSError, ValueError) as error:  # URLError is an OSError; ValueError: an address that is none
        reason = getattr(error, "reason", None) or error
        raise TextSetError(f"{name} cannot be fetched ({reason}).") from error
    return bytes(content)


def read_feed(content: bytes, name: str) -> list[Entry]:
    """The entries of a feed; `TextSetError` when it is none or has none."""
    try:
        import feedparser
    except ModuleNotFoundError as error:
        raise BuildError("The package feedparser is not installed: pip install 'tidegate[text]'.") from error
    if len(content) > MAX_BYTES:
        raise TextSetError(f"{name} is larger than {MAX_BYTES >> 20} MiB, which no feed is.")
    found = feedparser.parse(io.BytesIO(content))  # bytes alone would be taken for the name of a file
    if not found.get("version") or not found.entries:
        raise TextSetError(f"{name} is no RSS or Atom feed, or one without entries.")
    return [_entry(entry) for entry in found.entries]


def _entry(entry: Any) -> Entry:
    summary = entry.get("summary") or next((part.get("value", "") for part in entry.get("content", [])), "")
    terms = [str(tag.get("term") or tag.get("label") or "").strip() for tag in entry.get("tags", [])]
    return Entry(
        title=_plain(entry.get("title", "")),
        text=_plain(summary),
        link=str(entry.get("link", "")),
        label=next(filter(None, terms), ""),
    )


def _plain(markup: str) -> str:
    """Without tags and entities, and with single spaces."""
    return " ".join(html.unescape(_TAG.sub(" ", markup)).split())


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https and nothing else, also where a redirect leads."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


_TAG = re.compile(r"<[^<>]*>")
_OPENER = _opener()
