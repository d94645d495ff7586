"""Where a request comes from, when there are proxies in front.

Every proxy adds the address that it was called from at the end of `X-Forwarded-For`; what stands before that, the
caller wrote. So the header is read from its end, for as long as the address before was one of our own proxies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

IP = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PREFIX_V6 = 64
"""Bits of an IPv6 address that are one caller: whoever has one address has its whole /64."""
MAX_HOP = 64
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d{1,5})?|(\d+\.\d+\.\d+\.\d+):\d{1,5}")


def identity_of(peer: str, forwarded: Sequence[str], trusted: tuple[Network, ...]) -> str:
    """What a caller without a key is counted as: its IPv4 address, or the /64 of its IPv6 address.

    `forwarded` are the values of `X-Forwarded-For` in the order in which they came.
    """
    address = _parsed(peer)
    if trusted and forwarded and address is not None:
        address = _nearest_stranger(address, forwarded, trusted)
    return _counted(address) if address is not None else "address:unknown"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    address = _parsed(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _nearest_stranger(address: IP, forwarded: Sequence[str], trusted: tuple[Network, ...]) -> IP:
    hops = ",".join(forwarded)
    while hops and any(address in network for network in trusted):
        hops, _, last = hops.rpartition(",")
        before = _parsed(last.strip())
        if before is None:  # then the proxy itself is all that is known
            break
        address = before
    return address


@lru_cache(4096)
def _parsed(text: str) -> IP | None:
    """An address as proxies write it, with a port or without; an IPv4 address in IPv6's clothes is that."""
    if len(text) > MAX_HOP:
        return None
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address((found[1] or found[2]) if found else text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


@lru_cache(4096)
def _counted(address: IP) -> str:
    if isinstance(address, IPv4Address):
        return f"address:{address}"
    return f"address:{IPv6Network((int(address), PREFIX_V6), strict=False)}"
