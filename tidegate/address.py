"""Where a gateway is, and who asks: what a person writes → what a request needs."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_url(url: str) -> str:
    """The address of a gateway without a slash at its end; raises `ValueError` with what is wrong with it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of a gateway: write http://host:port or https://host")
    if parts.username or parts.password:
        raise ValueError("an address with a user or a password in it is for everybody to see: use a key file")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment: write http://host:port or https://host")
    return url.rstrip("/")


def check_key(key: str) -> str:
    """An API key without the blanks around it; raises `ValueError`, which does not repeat it."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("there is no API key: one line without blanks is meant, as `tidegate keys add` prints it")
    return key
