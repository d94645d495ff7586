"""What may be fetched: the one place that decides it, at the first address of an image and at every redirect.

A caller chooses the address, and the answer of a name's DNS server may change from one question to the next. So
there are two questions here: `Guard.locate` looks at what is written, `Guard.admit` at where the connection goes.
Nothing may resolve a name again after `admit`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin

from gateway.errors import ItemProblem

IP = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL = 8192
"""Characters of the longest address: one that is signed, with a session's token in it, has 2,000 or 3,000."""
USUAL_PORTS = {"http": 80, "https": 443}


class NotFetched(Exception):
    """Why an image is not fetched: `problem` is for its caller, `reason` for the log. Neither holds the address."""

    def __init__(self, problem: ItemProblem, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        self.reason = reason


def _forbidden(message: str, reason: str) -> NotFetched:
    return NotFetched(ItemProblem("url_forbidden", message), reason)


_MALFORMED = "This is not an address that can be fetched."
_SCHEME = "Only http and https addresses are fetched; send the bytes of an image as data."
_USER = "An address with a user name or a password is not fetched."
_NOT_LISTED = "Images are not fetched from this host or port."
_DOWNGRADE = "The address leads from https to http."
_NO_PUBLIC_ADDRESS = "The host has no public address."  # the same for a private one and for a name that does not exist


@dataclass(frozen=True)
class Location:
    """An address taken apart, once: what is connected to, asked and verified are these parts, never the text again.

    `host` is an IP address, or a name in ASCII and lower case without a dot at its end.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)  # path and query

    @property
    def authority(self) -> str:
        """The value of `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == USUAL_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True)
class HostRule:
    """A host that may be fetched from: a name, `*.` and a domain, or `*` for all; on `port`, or on 80 and 443."""

    host: str
    port: int | None = None

    def covers(self, location: Location) -> bool:
        named = location.host.endswith(self.host[1:]) if self.host[0] == "*" else location.host == self.host
        return named and (location.port in USUAL_PORTS.values() if self.port is None else location.port == self.port)


ANY_HOST = (HostRule("*"),)


@dataclass(frozen=True)
class Guard:
    """Which hosts may be fetched from, and which networks although they are not public."""

    hosts: tuple[HostRule, ...] = ANY_HOST
    networks: tuple[Network, ...] = ()

    def locate(self, url: str, source: Location | None = None) -> Location:
        """The parts of an address, or of a redirect's target as `source` gave it; raises `NotFetched`."""
        if source is not None and len(url) <= MAX_URL and not _ODD.search(url):
            url = _joined(source, url)
        location = _parts(url)
        if source is not None and (source.scheme, location.scheme) == ("https", "http"):
            raise _forbidden(_DOWNGRADE, "from https to http")
        if not any(rule.covers(location) for rule in self.hosts):
            raise _forbidden(_NOT_LISTED, "host or port not listed")
        return location

    def admit(self, addresses: Sequence[str]) -> list[IP]:
        """All of a host's addresses, to connect to one of them; raises `NotFetched` if one of them, or none, will do.

        An IPv6 address that stands for an IPv4 address comes back as that.
        """
        found = [_unmapped(ip_address(text)) for text in addresses]
        if not found:
            raise _forbidden(_NO_PUBLIC_ADDRESS, "no such host")
        if not all(is_public(ip) or self.is_inside(ip) for ip in found):
            raise _forbidden(_NO_PUBLIC_ADDRESS, "not a public address")
        return found

    def is_inside(self, ip: IP) -> bool:
        """Whether it is in a network that the operator named."""
        return any(ip in network for network in self.networks)


# RFC 3986, appendix B, for addresses with a host. Python's own splitter drops some characters and mends others, and
# not the same ones in every patch release.
_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_SCHEMES = re.compile(r"https?:", re.IGNORECASE)
_ODD = re.compile(r"[\x00-\x20\x7f-\xa0\\\ud800-\udfff]")  # controls, blanks; a backslash is a slash to some
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@%]+))(?::([0-9]{0,5}))?")
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


def _joined(source: Location, target: str) -> str:
    try:
        return urljoin(f"{source.scheme}://{source.authority}{source.target}", target)
    except ValueError as error:
        raise _forbidden(_MALFORMED, "malformed") from error


def _parts(url: str) -> Location:
    if not _SCHEMES.match(url):
        raise _forbidden(_SCHEME, "scheme")
    if len(url) > MAX_URL or _ODD.search(url) or not (found := _URL.fullmatch(url)):
        raise _forbidden(_MALFORMED, "malformed")
    scheme, authority, path, query = found.groups(default="")
    if "@" in authority:
        raise _forbidden(_USER, "user name or password")
    try:
        host, port = _host_and_port(authority)
    except ValueError as error:
        raise _forbidden(_MALFORMED, "malformed") from error
    scheme = scheme.lower()
    target = quote((path or "/") + query, safe=_PRINTABLE)
    return Location(scheme, host, USUAL_PORTS[scheme] if port is None else port, target)


def _host_and_port(authority: str) -> tuple[str, int | None]:
    """Both as they are used from then on; ValueError for what is neither a name nor an IP address in its usual form."""
    if not (found := _AUTHORITY.fullmatch(authority)):
        raise ValueError("not a host, or a host and a port")
    literal, name, port = found.groups()
    return str(_unmapped(IPv6Address(literal))) if literal else _name(name), int(port) if port else None


def _name(text: str) -> str:
    if not text.isascii():
        import idna  # of the extra; such names are rare

        if len(text) > 253:
            raise ValueError("too long")
        text = idna.encode(text, uts46=True).decode("ascii")
    name = text.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError("not a host name")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        # Resolvers also take 127.1, 0x7f.0.0.1, 017700000001 and 2130706433. Nobody writes them in good faith.
        return str(IPv4Address(name))
    return name


def _unmapped(ip: IP) -> IP:
    """`::ffff:a.b.c.d` is a.b.c.d: the system connects to that."""
    return (isinstance(ip, IPv6Address) and ip.ipv4_mapped) or ip


# `is_global` is not the same in every patch release of Python, and counts multicast in. So what matters is named.
_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        # IANA's special-purpose registry of IPv4
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and the inside of some clouds
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; 169.254.169.254 has a cloud's credentials
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "168.63.129.16/32",  # public by its number: Azure's host, seen from a machine of Azure
        # of IPv6, inside of what is global unicast
        "2001::/23",  # Teredo (which holds an IPv4 address), ORCHID, benchmarking, …
        "2001:db8::/32",
        "2002::/16",  # 6to4, which holds an IPv4 address; out of use since RFC 7526
        "3fff::/20",
    )
)
_GLOBAL_UNICAST = IPv6Network(
    "2000::/3"
)  # not: ::1, ::, IPv4-compatible, fc00::/7, fe80::/10, ff00::/8, 64:ff9b:1::/48
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the way to an IPv4 address where there is only IPv6


def is_public(ip: IP) -> bool:
    """Whether anybody on the Internet could connect to it. An address that holds another one is judged by both."""
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(ip.ipv4_mapped)
        if ip in _NAT64:
            return is_public(IPv4Address(int(ip) & 0xFFFFFFFF))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not any(ip in network for network in _NOT_PUBLIC)


def parse_hosts(text: str) -> tuple[HostRule, ...]:
    """`images.example.com, *.example.org, minio:9000` → rules; any public host when there are none.

    Raises ValueError with a sentence for the operator.
    """
    return tuple(map(_rule, _listed(text))) or ANY_HOST


def _rule(entry: str) -> HostRule:
    star = "*." if entry.startswith("*.") else ""
    try:
        if re.fullmatch(r"\*(:[0-9]+)?", entry):
            host, port = "*", int(entry[2:]) if entry[1:] else None
        else:
            host, port = _host_and_port(entry.removeprefix("*."))
        if port is not None and not 1 <= port <= 65535:
            raise ValueError("not a port")
    except ValueError as error:
        raise ValueError(
            f"{entry!r} is not a host: write names such as images.example.com, *.example.com or "
            "images.example.com:8443, with commas between them"
        ) from error
    return HostRule(star + host, port)


def parse_networks(text: str) -> tuple[Network, ...]:
    """`10.1.2.0/24, fd00:1::/64` → networks. Raises ValueError with a sentence for the operator."""
    return tuple(map(_network, _listed(text)))


def _network(entry: str) -> Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise ValueError(f"{error}: write networks such as 10.1.2.0/24, with commas between them") from error


def _listed(text: str) -> list[str]:
    return [entry for part in text.split(",") if (entry := part.strip())]
