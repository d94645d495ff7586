"""Connections and headers → who is counted."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.access.callers import identity_of, is_loopback

OURS = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # not a proxy of ours
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),  # what stands before, the caller wrote
        ("10.0.0.1", ["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.9.9.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),  # a chain of ours
        ("10.0.0.1", ["198.51.100.1,10.0.0.3 , 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # from inside
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::/64"),
        ("10.0.0.1", ["[2001:db8::7]"], "2001:db8::/64"),
        ("10.0.0.1", ["1.1.1.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1, "], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1, 300.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1, " + "9" * 5000], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),  # a socket that takes IPv4 and IPv6
        ("::ffff:203.0.113.7", [], "203.0.113.7"),
        ("fd00::1", ["2001:db8:0:1::7"], "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff::1", [], "2001:db8:0:1::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        ("::1", [], "::/64"),
        ("", [], "unknown"),
        ("", ["198.51.100.1"], "unknown"),
    ],
)
def test_the_last_address_that_is_not_ours(peer: str, forwarded: list[str], counted: str) -> None:
    """Only our proxies' own words count; an IPv6 address counts by its /64."""
    assert identity_of(peer, forwarded, OURS) == f"address:{counted}"


def test_nobody_is_believed_by_default() -> None:
    """Not even this machine."""
    assert identity_of("127.0.0.1", ["198.51.100.1"], ()) == "address:127.0.0.1"


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback(host: str, inside: bool) -> None:
    """Where only this machine can call."""
    assert is_loopback(host) is inside
