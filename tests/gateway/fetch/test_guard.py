"""What may be fetched."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fetch.guard import MAX_URL, Guard, Location, NotFetched, is_public, parse_hosts, parse_networks


def refusal(guard: Guard, url: str, source: Location | None = None) -> str:
    with pytest.raises(NotFetched) as refused:
        guard.locate(url, source)
    assert refused.value.problem.code == "url_forbidden"
    return refused.value.problem.message


@pytest.mark.parametrize(
    ("url", "location", "authority"),
    [
        ("http://example.com", Location("http", "example.com", 80, "/"), "example.com"),
        ("HTTPS://Example.COM./a//b?c=1#d", Location("https", "example.com", 443, "/a//b?c=1"), "example.com"),
        ("https://example.com:443/", Location("https", "example.com", 443, "/"), "example.com"),
        ("http://example.com:443?x", Location("http", "example.com", 443, "/?x"), "example.com:443"),
        ("http://example.com:/", Location("http", "example.com", 80, "/"), "example.com"),
        ("http://a_b.s3.example.com/éü", Location("http", "a_b.s3.example.com", 80, "/%C3%A9%C3%BC"),
         "a_b.s3.example.com"),
        ("http://example.com/%0d%0a?a=%2F|{}", Location("http", "example.com", 80, "/%0d%0a?a=%2F|{}"), "example.com"),
        ("http://bücher.example/", Location("http", "xn--bcher-kva.example", 80, "/"), "xn--bcher-kva.example"),
        ("http://straße.example/", Location("http", "xn--strae-oqa.example", 80, "/"), "xn--strae-oqa.example"),
        ("http://8.8.8.8/", Location("http", "8.8.8.8", 80, "/"), "8.8.8.8"),
        ("http://[2606:4700:0::1111]:443/", Location("http", "2606:4700::1111", 443, "/"), "[2606:4700::1111]:443"),
        ("http://[::ffff:8.8.8.8]/", Location("http", "8.8.8.8", 80, "/"), "8.8.8.8"),
    ],
)  # fmt: skip
def test_an_address_is_taken_apart_once(url: str, location: Location, authority: str) -> None:
    """Scheme, host, port and target are those that are used from then on."""
    found = Guard().locate(url)
    assert (found, found.authority) == (location, authority)


@pytest.mark.parametrize(
    "url",
    [
        "", "x", "//example.com/", "/etc/passwd", "file:///etc/passwd", "ftp://example.com/", "gopher://example.com/",
        "data:image/png;base64,AAAA", "javascript:1", "dict://example.com/", "unix:/run/x", " http://example.com/",
        "\thttp://example.com/", "httpx://example.com/", "ws://example.com/", "ht\ntp://example.com/",
    ],
)  # fmt: skip
def test_other_schemes(url: str) -> None:
    """Only http and https, written as such."""
    assert refusal(Guard(), url).startswith("Only http and https")


@pytest.mark.parametrize(
    "url", ["http://user@example.com/", "http://user:secret@example.com/", "http://@example.com/", "http://a@b@c/"]
)
def test_users(url: str) -> None:
    """A name or password in front of a host is a trick, or a secret."""
    assert "password" in refusal(Guard(), url)


@pytest.mark.parametrize(
    "url",
    [
        "http:", "http:/", "http://", "http:///", "http:///example.com/", "http:example.com", "http:/example.com/",
        "http://:80/", "http://?x", "http://.", "http://..", "http://a..b/", "http://.example.com/", "http://-a.com/",
        "http://example.com /", "http://example.com/a b", "http://example.com/\r\nHost: x", "http://example.com/\x00",
        "http://example.com/\x7f", "http://example.com/\x85", "http://example.com/\udc80", "http://exa\tmple.com/",
        "http://example.com\\@127.0.0.1/", "http:\\\\example.com", "http://example.com/\\x", "http://example.com:x/",
        "http://example.com:-1/", "http://example.com:8٠/", "http://example.com:+80/", "http://example.com:80:80/",
        "http://example.com:123456/", "http://%31%32%37.0.0.1/", "http://127.0.0.1%2f.example.com/",
        "http://[::1", "http://::1/", "http://[::1]x/", "http://[::1]:x/", "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/", "http://[v1.x]/", "http://[127.0.0.1]/", "http://[example.com]/", "http://[]/",
        "http://example.com]/", "http://exam<ple.com/", "http://exa*mple.com/", "http://example.com,127.0.0.1/",
        "http://" + "a" * 64 + ".com/", "http://" + "a." * 127 + "com/", "http://" + "é" * 300 + ".com/",
        "http://\u2024/", "http://☃-⌘.com/", "http://example.com/" + "x" * MAX_URL, "http://xn--\u0660.com/",
        "http://2130706433/", "http://0x7f000001/", "http://017700000001/", "http://0177.0.0.1/", "http://0x7f.1/",
        "http://127.1/", "http://127.0.1/", "http://0/", "http://0x/", "http://127.0.0.0x1/", "http://1.2.3.4.5/",
        "http://127.000.000.001/", "http://256.0.0.1/", "http://8.8.8/", "http://1.2.3.08/", "http://0X7F.0.0.1/",
        "http://example.1/",
    ],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    """Whatever two programs might read in two ways is not read at all; numbers are four, and decimal."""
    assert refusal(Guard(), url) == "This is not an address that can be fetched."


@pytest.mark.parametrize(
    ("hosts", "url", "allowed"),
    [
        ("", "http://example.com/", True),
        ("", "http://example.com:443/", True),
        ("", "http://example.com:8080/", False),
        ("", "https://example.com:22/", False),
        ("", "http://example.com:0/", False),
        ("", "http://example.com:65536/", False),
        ("example.com", "https://EXAMPLE.com./", True),
        ("example.com", "https://www.example.com/", False),
        ("example.com", "https://example.com:8443/", False),
        ("example.com", "https://example.com.evil.org/", False),
        ("example.com", "https://notexample.com/", False),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("*, store:9000", "https://example.org/", True),
        ("*, store:9000", "http://store:9000/x", True),
        ("*, store:9000", "https://example.org:9000/", False),
        ("*:8080", "http://example.org:8080/", True),
        ("Bücher.example", "http://xn--bcher-kva.example/", True),
        ("10.1.2.3:9000 , [fd00::1]", "http://10.1.2.3:9000/", True),
        ("10.1.2.3:9000 , [fd00::1]", "http://[fd00:0::1]/", True),
    ],
)
def test_hosts_and_ports(hosts: str, url: str, allowed: bool) -> None:
    """Any host on 80 and 443, or those of the list; a port beyond these is named with its host."""
    guard = Guard(parse_hosts(hosts))
    if allowed:
        guard.locate(url)
    else:
        assert refusal(guard, url) == "Images are not fetched from this host or port."


@pytest.mark.parametrize("text", ["http://example.com", "a/b", "a b", "*example.com", "a.*.com", "a:0", "a:65536",
                                  "*:x", "user@a", "127.1", "*.", "**", "-a", "fd00::1"])  # fmt: skip
def test_host_lists_that_are_none(text: str) -> None:
    """The operator is told what was not understood, and what would be."""
    with pytest.raises(ValueError, match=r"is not a host: write names such as images\.example\.com"):
        parse_hosts(f"good.example.com, {text}")


@pytest.mark.parametrize("text", ["10.1.2.3/24", "10.1.2", "example.com", "10.0.0.0/33", "10.0.0.0-10.0.0.9"])
def test_networks_that_are_none(text: str) -> None:
    """The same for networks."""
    with pytest.raises(ValueError, match=r"write networks such as 10\.1\.2\.0/24"):
        parse_networks(f"fd00::/8,{text}")


SOURCE = Location("https", "example.com", 443, "/a/b?c")


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("https://images.example.com/x", Location("https", "images.example.com", 443, "/x")),
        ("//images.example.com/x", Location("https", "images.example.com", 443, "/x")),
        ("/x?y", Location("https", "example.com", 443, "/x?y")),
        ("x", Location("https", "example.com", 443, "/a/x")),
        ("?y", Location("https", "example.com", 443, "/a/b?y")),
        ("", Location("https", "example.com", 443, "/a/b?c")),
    ],
)
def test_where_a_redirect_leads(target: str, location: Location) -> None:
    """A target may be relative to where it came from."""
    assert Guard().locate(target, SOURCE) == location


@pytest.mark.parametrize(
    "target",
    ["http://example.com/", "file:///etc/passwd", "//user@example.com/", "//127.1/", "gopher://x", "//[", "//\u2100/",
     "/a b", "\\\\x", "x" * MAX_URL, "https://example.com:22/", "data:,x", "//exam\nple.com"],
)  # fmt: skip
def test_redirects_are_judged_like_first_addresses(target: str) -> None:
    """And do not lead from https to http."""
    assert refusal(Guard(), target, SOURCE)


PRIVATE = [
    "127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "100.127.255.255", "192.0.0.1", "192.0.0.192",
    "192.0.0.9", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1",
    "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::7f00:1", "::127.0.0.1", "::8.8.8.8", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "100::1", "2001::1", "2001:db8::1", "2001:10::1", "2001:20::1",
    "3fff::1", "4000::1", "64:ff9b:1::8.8.8.8", "::ffff:0:8.8.8.8", "5f00::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::100.64.0.1",
    "2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:a00:1::",
]  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1",
    "198.17.0.1", "223.255.255.255", "11.0.0.1", "126.255.255.255", "128.0.0.1", "169.253.1.1", "2606:4700::1111",
    "2a00:1450:4001::1", "2001:4860:4860::8888", "2001:200::1", "2003::1",
    "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2600::", "3ffe:ffff::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    """Private, shared, local, reserved, multicast; and whatever holds such an IPv4 address, or hides any."""
    assert not is_public(ip_address(address))
    with pytest.raises(NotFetched, match="not a public address"):
        Guard().admit(["8.8.8.8", address])


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_that_are_public(address: str) -> None:
    """What lies beside the ranges, and NAT64 of a public address, which is all there is in some clusters."""
    assert is_public(ip_address(address))
    assert Guard().admit([address])


def test_a_name_without_an_address() -> None:
    """Is refused in the same words as one with a private address."""
    with pytest.raises(NotFetched) as nobody:
        Guard().admit([])
    with pytest.raises(NotFetched) as private:
        Guard().admit(["10.0.0.1"])
    assert nobody.value.problem == private.value.problem


def test_networks_of_the_operator() -> None:
    """Are let through as they are; an address that only holds one of theirs is not."""
    guard = Guard(networks=parse_networks("10.1.2.0/24, fd00:1::/64"))
    assert guard.admit(["10.1.2.3", "fd00:1::5", "::ffff:10.1.2.4", "8.8.8.8"]) == [
        ip_address(text) for text in ("10.1.2.3", "fd00:1::5", "10.1.2.4", "8.8.8.8")
    ]
    for address in ("10.1.3.1", "fd00:2::1", "64:ff9b::10.1.2.3", "2002:a01:203::", "127.0.0.1"):
        with pytest.raises(NotFetched):
            guard.admit([address])


PRIVATE_NETWORKS = [
    IPv4Network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10",
                    "0.0.0.0/8", "224.0.0.0/4")
]  # fmt: skip
private_numbers = st.sampled_from(PRIVATE_NETWORKS).flatmap(
    lambda network: st.integers(int(network.network_address), int(network.broadcast_address))
)
number_forms: st.SearchStrategy[Callable[[int], str]] = st.sampled_from(
    [str, hex, lambda n: f"0{n:o}", lambda n: f"0X{n:X}", lambda n: f"0x{n:08x}", lambda n: f"{n:03d}"]
)
digits: st.SearchStrategy[dict[int, str]] = st.sampled_from(
    [{}, {ord(str(n)): chr(0xFF10 + n) for n in range(10)}, {ord("."): "。"}, {ord("."): "%2e"}, {ord("1"): "%31"}]
)


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """A host that means a private IPv4 address to some program."""
    number = draw(private_numbers)
    octets = number.to_bytes(4, "big")
    if draw(st.booleans()):  # one to four numbers, as inet_aton takes them
        parts = draw(st.integers(1, 4))
        numbers = [*octets[: parts - 1], int.from_bytes(octets[parts - 1 :], "big")]
        text = ".".join(draw(number_forms)(n) for n in numbers)
        return text.translate(draw(digits)) + draw(st.sampled_from(["", "."]))
    prefix = draw(st.sampled_from([0xFFFF << 32, 0, 0x64FF9B << 96, 0xFFFF << 48, 0x64FF9B0001 << 80]))
    inside = {"end": prefix | number, "6to4": 0x2002 << 112 | number << 80 | 1,
              "teredo": 0x2001 << 112 | number << 64 | number ^ 0xFFFFFFFF}  # fmt: skip
    ipv6 = IPv6Address(inside[draw(st.sampled_from(sorted(inside)))])
    forms = [ipv6.compressed, ipv6.exploded, ipv6.compressed.upper(), f"{ipv6}%25eth0"]
    if ipv6 == IPv6Address(0xFFFF << 32 | number):
        forms += [f"::ffff:{IPv4Address(number)}", f"0:0:0:0:0:FFFF:{IPv4Address(number)}"]
    return f"[{draw(st.sampled_from(forms))}]"


def as_the_system_reads_it(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(sockaddr[0]) for *_, sockaddr in found]


@given(spellings(), st.sampled_from(["http", "https"]))
def test_no_spelling_of_a_private_address_gets_through(host: str, scheme: str) -> None:
    """Neither as it is written nor as the system's own resolver reads it."""
    with pytest.raises(NotFetched):
        Guard().admit(as_the_system_reads_it(Guard().locate(f"{scheme}://{host}/x.jpg").host))
