"""Fetches over real sockets. Names are made up, because no DNS has them; the servers are of this machine."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpcore
import pytest

from gateway.admission import Admission, Deadline
from gateway.errors import BodyTooLarge, DeadlineExceeded, ItemProblem, Overloaded
from gateway.fetch import Address, fetch_nothing
from gateway.fetch.fetcher import AT_ONCE_OF_A_REQUEST, FAILED, OUTCOMES, resolve
from gateway.images import HEAD_BYTES
from gateway.observe import metrics
from gateway.triton.local import free_ports
from tests.gateway.fetch.origins import (
    LARGE_PICTURE,
    PICTURE,
    Answer,
    Detour,
    Names,
    Origin,
    answer,
    certificate,
    code,
    fetch,
    fetcher,
    nobody_answers,
    nobody_comes,
    redirect,
    running,
    then_silence,
    without_end,
)

HTML = b"<!doctype html><title>Sign in</title>" + b" " * HEAD_BYTES
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def origin() -> Iterator[Origin]:
    """A server with one picture, for tests that add to its answers."""
    with running({"/x.jpg": answer()}) as server:
        yield server


def here(origin: Origin, path: str = "/x.jpg") -> str:
    return f"http://127.0.0.1:{origin.port}{path}"


def message(content: bytes | ItemProblem) -> str:
    assert isinstance(content, ItemProblem)
    return content.message


def test_an_image_is_fetched(origin: Origin) -> None:
    """Its bytes come back; the server is told no more than it must know."""
    origin.answers = {"/a/%C3%A9.jpg?s=1%202&t=|": answer()}
    (content,) = fetch(fetcher(f"127.0.0.1:{origin.port}"), here(origin, "/a/é.jpg?s=1%202&t=|#part"))
    assert content == PICTURE
    request, *headers = origin.asked[0].split("\r\n")
    assert request == "GET /a/%C3%A9.jpg?s=1%202&t=| HTTP/1.1"
    names = dict(line.split(": ") for line in headers if line)
    assert names.pop("User-Agent").startswith("tidegate/")
    assert names == {
        "Host": f"127.0.0.1:{origin.port}",
        "Accept": "image/*",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }


def test_a_body_may_come_in_any_way(origin: Origin) -> None:
    """In chunks, until the end of the connection, after interim answers, and with any declared type."""
    chunks = b"%x\r\n%b\r\n1\r\n\xff\r\n0\r\n\r\n" % (len(PICTURE), PICTURE)
    origin.answers = {
        "/chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        "/end": HEAD + b"\r\n" + PICTURE,
        "/interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(PICTURE, "Content-Type: text/html"),
        "/identity": answer(PICTURE, "Content-Encoding: identity"),
        "/empty": answer(b""),
    }
    found = fetch(fetcher(f"127.0.0.1:{origin.port}"), *(here(origin, path) for path in origin.answers))
    assert found == [PICTURE + b"\xff", PICTURE, PICTURE, PICTURE, b""]


def test_every_image_keeps_its_place(origin: Origin) -> None:
    """Among others that were sent, or could not be fetched; and never more than some at once."""
    barrier, waiting, most = threading.Lock(), 0, 0

    def slowly(connection: Any) -> None:
        nonlocal waiting, most
        with barrier:
            waiting += 1
            most = max(most, waiting)
        threading.Event().wait(0.01)
        with barrier:
            waiting -= 1
        connection.sendall(answer())

    origin.answers = {"/slow": slowly, "/404": answer(b"", status="404 Not Found")}
    problem = ItemProblem("invalid_base64", "x")
    urls = [Address(here(origin, "/404" if i % 5 == 0 else "/slow")) for i in range(40)]
    one = fetcher(f"127.0.0.1:{origin.port}")
    found = asyncio.run(one.fetch([problem, *urls, b"sent"], Deadline.after(30), lambda size: None))
    assert found[0] is problem
    assert found[-1] == b"sent"
    assert [code(x) for x in found[1:-1]] == ["url_fetch_failed" if i % 5 == 0 else "ok" for i in range(40)]
    assert 1 < most <= AT_ONCE_OF_A_REQUEST


def test_a_gateway_that_fetches_nothing() -> None:
    """Says so in the place of every address."""
    found = asyncio.run(fetch_nothing([b"x", Address("http://example.com/")], Deadline.after(1), lambda size: None))
    assert (found[0], code(found[1])) == (b"x", "url_forbidden")


NUMBERS = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0",
           "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]",
           "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[::1%25lo]", "１２７.0.0.1", "127。0。0。1", "%31%32%37.0.0.1",
           "127.0.0.1.", "169.254.169.254", "100.64.0.1", "224.0.0.1", "[fe80::1]", "[fd00::1]"]  # fmt: skip


@pytest.mark.parametrize("host", NUMBERS)
def test_no_connection_to_this_machine(host: str) -> None:
    """Not one packet goes to an address that is forbidden, however it is written, redirected to or resolved."""
    names = Names(public_example=["93.184.216.34"], mixed_example=["93.184.216.34", "127.0.0.1"])
    names.addresses["local.example"] = [host.strip("[].")] if host in ("127.0.0.1", "[::1]", "0.0.0.0") else []
    with nobody_comes() as port, running({"/": redirect(f"http://{host}:{port}/")}) as origin:
        detour = Detour(origin.port)
        one = fetcher(f"*,*:{port}", networks="", resolve=names, network=detour)
        urls = [f"http://{host}:{port}/", f"http://local.example:{port}/", f"http://mixed.example:{port}/"]
        assert [code(content) for content in fetch(one, *urls)] == ["url_forbidden"] * 3
        assert detour.dialled == []
        plain = fetcher(f"*,*:{port}", networks="")
        assert [code(x) for x in fetch(plain, urls[0], f"http://localhost:{port}/")] == ["url_forbidden"] * 2
        assert code(fetch(one, "http://public.example/")[0]) == "url_forbidden"  # led on to `host`
        assert detour.dialled == ["93.184.216.34"]


def test_one_wording_for_names_that_lead_nowhere() -> None:
    """Who asks cannot tell a private name from one that does not exist."""
    names = Names(private_example=["10.0.0.1"], mixed_example=["8.8.8.8", "fd00::1"])
    urls = [f"http://{host}/" for host in ("private.example", "mixed.example", "no.such.example", "10.0.0.1", "[::1]")]
    found = fetch(fetcher(networks="", resolve=names), *urls)
    assert {(code(x), message(x)) for x in found} == {("url_forbidden", "The host has no public address.")}


def test_a_name_is_resolved_once_for_each_hop() -> None:
    """A second answer of its DNS server is never asked for: the connection goes to what was checked."""

    class Rebinding(Names):
        async def __call__(self, host: str) -> list[str]:
            await super().__call__(host)
            return ["93.184.216.34"] if len(self.asked) % 2 else ["127.0.0.1"]

    names = Rebinding()
    with running({"/": answer()}) as origin:
        detour = Detour(origin.port)
        assert fetch(fetcher(networks="", resolve=names, network=detour), "http://rebind.example/") == [PICTURE]
    assert (names.asked, detour.dialled) == (["rebind.example"], ["93.184.216.34"])
    assert "\r\nHost: rebind.example\r\n" in origin.asked[0]

    names.asked.clear()
    with running({"/": redirect("/again")}) as origin:
        detour = Detour(origin.port)
        found = fetch(fetcher(networks="", resolve=names, network=detour), "http://rebind.example/")
    assert [code(content) for content in found] == ["url_forbidden"]
    assert (len(names.asked), detour.dialled) == (2, ["93.184.216.34"])


def test_the_next_address_is_tried() -> None:
    """A host may have addresses that do not answer; all of them were checked."""
    names = Names(images_example=["2606:4700::1", "2606:4700::1", "8.8.4.4", "8.8.8.8", "9.9.9.9"])
    with running({"/": answer()}) as origin:
        detour = Detour(origin.port, dead=["2606:4700::1", "8.8.4.4"])
        assert fetch(fetcher(networks="", resolve=names, network=detour), "http://images.example/") == [PICTURE]
        assert detour.dialled == ["2606:4700::1", "8.8.4.4", "8.8.8.8"]
        names.addresses["images.example"] = ["8.8.4.4"]
        assert fetch(fetcher(networks="", resolve=names, network=detour), "http://images.example/") == [FAILED]


def test_the_systems_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what it knows, and nothing of names that are none."""
    assert "127.0.0.1" in asyncio.run(resolve("localhost"))
    assert asyncio.run(resolve("a" * 70)) == []
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(socket.EAI_NONAME)))
    assert asyncio.run(resolve("no-such-host.example")) == []


def test_redirects(origin: Origin) -> None:
    """Are followed, to a limit, from host to host and in a circle no further than that."""
    origin.answers = {
        "/0": answer(),
        **{f"/{n}": redirect(f"/{n - 1}", status) for n, status in enumerate(["301 x", "303 x", "307 x", "308 x"], 1)},
        "/loop": redirect("/loop"),
        "/nowhere": answer(b"", status="302 Found"),
        "/304": answer(b"", "Location: /0", status="304 Not Modified"),
        "/endless": without_end(b"HTTP/1.1 302 Found\r\nLocation: /0\r\n\r\n", bytes(65536)),
        "/odd": b"HTTP/1.1 302 Found\r\nLocation: /\xff\r\n\r\n",
    }
    one = fetcher(f"127.0.0.1:{origin.port}")
    paths = ["/3", "/endless", "/4", "/nowhere", "/304", "/loop"]
    codes = [code(content) for content in fetch(one, *(here(origin, path) for path in paths))]
    assert codes == ["ok", "ok"] + ["url_fetch_failed"] * 4
    assert sum(head.startswith("GET /loop ") for head in origin.asked) == 4
    none = fetcher(f"127.0.0.1:{origin.port}", max_redirects=0)
    assert [code(content) for content in fetch(none, here(origin, "/1"), here(origin, "/0"))] == [
        "url_fetch_failed",
        "ok",
    ]


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/", "data:image/png;base64,AA==", "http://user:x@127.0.0.1/",
               "http://127.0.0.1:22/", "http://10.0.0.1/", "http://0x7f.1/", "http://[::1]/", "http://no.such.example/"]
)  # fmt: skip
def test_redirects_to_what_is_forbidden(origin: Origin, target: str) -> None:
    """Every hop is judged as the first one is."""
    origin.answers = {"/x.jpg": redirect(target)}
    one = fetcher(f"127.0.0.1:{origin.port}, *", resolve=Names())
    assert [code(content) for content in fetch(one, here(origin))] == ["url_forbidden"]


def test_tls_goes_by_the_name(tmp_path: Path) -> None:
    """The connection is made to the address, and the certificate, SNI and Host are of the name."""
    server, client = certificate(tmp_path, "images.example")
    names = Names(images_example=["93.184.216.34"], other_example=["93.184.216.34"])
    with running({"/x.jpg": answer()}, tls=server) as origin:
        trusting = fetcher(networks="", resolve=names, network=Detour(origin.port), ssl_context=client)
        assert fetch(trusting, "https://Images.Example./x.jpg") == [PICTURE]
        assert origin.names == ["images.example"]
        assert "\r\nHost: images.example\r\n" in origin.asked[0]
        strict = fetcher(networks="", resolve=names, network=Detour(origin.port))
        assert fetch(trusting, "https://other.example/x.jpg", "https://93.184.216.34/x.jpg") == [FAILED] * 2
        assert fetch(strict, "https://images.example/x.jpg") == [FAILED]
        assert fetch(trusting, "http://images.example/x.jpg") == [FAILED]
        assert len(origin.asked) == 1


def test_no_way_down_from_https(tmp_path: Path) -> None:
    """A redirect to http ends it."""
    server, client = certificate(tmp_path, "images.example")
    names = Names(images_example=["93.184.216.34"])
    with running({"/": redirect("http://images.example/x.jpg")}, tls=server) as origin:
        one = fetcher(networks="", resolve=names, network=Detour(origin.port), ssl_context=client)
        assert [code(content) for content in fetch(one, "https://images.example/")] == ["url_forbidden"]


BROKEN: dict[str, Answer] = {
    "/closed": b"",
    "/not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "/http-0.9": PICTURE,
    "/short": answer(length=len(PICTURE) + 1),
    "/bad-length": HEAD + b"Content-Length: many\r\n\r\n",
    "/long-length": HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "/two-lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "/bad-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "/encoded-transfer": HEAD + b"Transfer-Encoding: gzip\r\n\r\n" + gzip.compress(PICTURE),
    "/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "/endless-head": without_end(HEAD, b"X: " + b"x" * 8192 + b"\r\n"),
}


def test_servers_that_are_broken(origin: Origin) -> None:
    """Whatever fails on the way is told in one sentence."""
    origin.answers = BROKEN
    found = fetch(fetcher(f"127.0.0.1:{origin.port}"), *(here(origin, path) for path in BROKEN))
    assert found == [FAILED] * len(BROKEN)


def test_open_and_closed_ports_look_alike(origin: Origin) -> None:
    """And so do a server that speaks another protocol and one that refuses what was asked."""
    (closed,) = free_ports(1)
    origin.answers = {
        "/closed": b"",
        "/401": answer(b"", status="401 Unauthorized"),
        "/zip": answer(b"", "Content-Encoding: gzip"),
    }
    one = fetcher(f"*:{origin.port}, *:{closed}", timeout_s=0.5)
    urls = [
        f"http://127.0.0.1:{closed}/",
        f"https://127.0.0.1:{origin.port}/",
        *(here(origin, x) for x in origin.answers),
    ]
    assert fetch(one, *urls) == [FAILED] * 5


def _drip(connection: Any) -> None:
    connection.sendall(HEAD + b"\r\n\xff\xd8\xff")
    while True:
        connection.sendall(b"\0")
        threading.Event().wait(0.01)


STALLS: dict[str, Answer] = {
    "/head": then_silence(b""),
    "/in-head": then_silence(HEAD + b"Content-"),
    "/body": then_silence(HEAD + b"Content-Length: 1000\r\n\r\n"),
    "/in-body": then_silence(HEAD + b"Content-Length: 1000\r\n\r\n" + PICTURE[:100]),
    "/drip": _drip,
    "/interim": without_end(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
}


@pytest.mark.parametrize("path", STALLS)
def test_servers_that_stall(origin: Origin, path: str) -> None:
    """An image has so many seconds in all, and then its connection is closed."""
    origin.answers = STALLS
    assert fetch(fetcher(f"127.0.0.1:{origin.port}", timeout_s=0.15), here(origin, path)) == [FAILED]
    assert origin.hung_up.wait(10)


def test_stalls_before_there_is_a_connection() -> None:
    """In the resolver, in connecting, in the TLS handshake."""

    async def never(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    class Dead(httpcore.AsyncNetworkBackend):
        connect_tcp = never

    assert fetch(fetcher(timeout_s=0.1, resolve=never), "http://a.example/") == [FAILED]
    assert fetch(fetcher(timeout_s=0.1, network=Dead()), "http://127.0.0.1/") == [FAILED]
    with nobody_answers() as port:
        assert fetch(fetcher(f"*:{port}", timeout_s=0.1), f"https://127.0.0.1:{port}/") == [FAILED]


def test_no_connection_is_lost_sight_of(origin: Origin) -> None:
    """One whose TLS handshake never ends is closed when its time is over, not when the process ends."""

    async def stalled() -> bool:
        one = fetcher(f"*:{origin.port}", timeout_s=0.1)
        url = Address(f"https://127.0.0.1:{origin.port}/")
        assert await one.fetch([url], Deadline.after(30), lambda size: None) == [FAILED]
        return await asyncio.to_thread(origin.hung_up.wait, 10)

    assert asyncio.run(stalled())


@pytest.mark.parametrize("begin", [PICTURE, LARGE_PICTURE], ids=["JPEG", "BMP"])
def test_bodies_without_end(origin: Origin, begin: bytes) -> None:
    """Are left as soon as they are larger than a file may be; no more than that is kept."""
    kept: list[int] = []
    origin.answers = {"/x.jpg": without_end(HEAD + b"\r\n" + begin, bytes(4096))}
    (content,) = fetch(fetcher(f"127.0.0.1:{origin.port}"), here(origin), grow=kept.append)
    assert (code(content), message(content)) == ("file_too_large", "The file has more than 100000 bytes.")
    assert 100_000 < sum(kept) <= 100_000 + 65_536
    assert origin.hung_up.wait(10)


def test_a_length_that_is_too_large_is_believed(origin: Origin) -> None:
    """Not a byte of such a body is read."""
    kept: list[int] = []
    origin.answers = {"/x.jpg": then_silence(answer(PICTURE, length=100_001))}
    (content,) = fetch(fetcher(f"127.0.0.1:{origin.port}"), here(origin), grow=kept.append)
    assert (code(content), kept) == ("file_too_large", [])


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (HTML, "This looks like html"),
        (b"%PDF-1.7" + bytes(HEAD_BYTES), "This looks like pdf"),
        (gzip.compress(bytes(10_000_000))[: HEAD_BYTES * 2], "This looks like gzip"),
        (b"just words " * 100, "This is not a picture of a known kind"),
    ],
)
def test_what_is_no_picture_is_not_read_on(origin: Origin, begin: bytes, words: str) -> None:
    """The first bytes decide, not the declared type, and what follows them stays where it is."""
    origin.answers = {"/x.jpg": then_silence(answer(begin, "Content-Type: image/jpeg", length=99_999))}
    (content,) = fetch(fetcher(f"127.0.0.1:{origin.port}"), here(origin))
    assert code(content) == "unsupported_image"
    assert message(content).startswith(words)
    assert origin.hung_up.wait(10)


def test_what_a_public_server_said_is_told() -> None:
    """Its status, or that it compressed: that helps its owner, and concerns nothing of ours."""
    names = Names(images_example=["93.184.216.34"])
    answers = {
        "/403": answer(b"", status="403 Forbidden"),
        "/206": answer(PICTURE, status="206 Partial Content"),
        "/gzip": answer(gzip.compress(bytes(1_000_000)), "Content-Encoding: gzip"),
        "/zstd": answer(PICTURE, "content-encoding: ZSTD"),
    }
    with running(answers) as origin:
        one = fetcher(networks="", resolve=names, network=Detour(origin.port))
        found = fetch(one, *(f"http://images.example{path}" for path in answers))
    assert {code(content) for content in found} == {"url_fetch_failed"}
    assert [message(content) for content in found] == [
        "The server answered with status 403.",
        "The server answered with status 206.",
        "The server answered with a compressed body.",
        "The server answered with a compressed body.",
    ]


def test_memory_of_all_requests_is_bounded(origin: Origin) -> None:
    """What is fetched counts like a body that is sent; the request is refused, and its other fetches end."""
    origin.answers = {"/x.jpg": answer(LARGE_PICTURE), "/slow": then_silence(b"")}
    admission = Admission(max_images=10, max_bytes=2 * len(LARGE_PICTURE), target_s=60)
    one = fetcher(f"127.0.0.1:{origin.port}")
    with admission.hold() as other, admission.hold() as grow:
        other(len(LARGE_PICTURE) + 1)
        with pytest.raises(Overloaded):
            fetch(one, here(origin), here(origin, "/slow"), grow=grow)
    with admission.hold() as other, admission.hold() as grow:
        other(len(LARGE_PICTURE))
        assert fetch(one, here(origin), grow=grow) == [LARGE_PICTURE]


def test_images_of_a_request_together(origin: Origin) -> None:
    """May be no more than its body might have been."""
    origin.answers = {"/x.jpg": answer(LARGE_PICTURE), "/slow": then_silence(b"")}
    one = fetcher(f"127.0.0.1:{origin.port}", max_bytes=2 * len(LARGE_PICTURE))
    assert fetch(one, here(origin), here(origin)) == [LARGE_PICTURE] * 2
    with pytest.raises(BodyTooLarge, match=f"limit of {2 * len(LARGE_PICTURE)} bytes"):
        fetch(one, here(origin), here(origin), here(origin, "/slow"), here(origin))


def test_the_deadline_of_the_request(origin: Origin) -> None:
    """Ends all of its fetches, and is the request's error; one that has passed begins none."""
    origin.answers = {"/x.jpg": answer(), "/slow": then_silence(b"")}
    one = fetcher(f"127.0.0.1:{origin.port}")
    with pytest.raises(DeadlineExceeded):
        fetch(one, here(origin), here(origin, "/slow"), seconds=0.2)
    assert origin.hung_up.wait(10)
    asked = len(origin.asked)
    with pytest.raises(DeadlineExceeded):
        fetch(one, here(origin), seconds=0)
    assert len(origin.asked) == asked


def test_outcomes_are_counted(origin: Origin) -> None:
    """Each fetch once, in a few fixed words."""

    def counts() -> dict[str, float]:
        return {outcome: metrics.URL_FETCHES.labels(outcome)._value.get() for outcome in OUTCOMES}

    origin.answers = {
        "/ok": answer(),
        "/404": answer(b"", status="404 Not Found"),
        "/html": answer(HTML),
        "/large": answer(length=1_000_000),
        "/slow": then_silence(b""),
    }
    before = counts()
    one = fetcher(f"127.0.0.1:{origin.port}")
    fetch(one, *(here(origin, path) for path in ("/ok", "/404", "/html", "/large")), "http://10.0.0.1/", "x")
    with pytest.raises(DeadlineExceeded):
        fetch(one, here(origin, "/slow"), seconds=0.1)
    grown = {outcome: value - before[outcome] for outcome, value in counts().items()}
    assert grown == {**dict.fromkeys(OUTCOMES, 1), "url_forbidden": 2}


def test_the_log_has_no_secrets(origin: Origin, caplog: pytest.LogCaptureFixture) -> None:
    """Host and reason, at a level that is off by default; never path, query, user or where a redirect led."""
    caplog.set_level(logging.DEBUG)
    origin.answers = {
        "/SECRET?SECRET": redirect("/SECRET2?SECRET"),
        "/SECRET2?SECRET": answer(b"", status="403 SECRET"),
    }
    one = fetcher(f"127.0.0.1:{origin.port}, *", resolve=Names())
    fetch(one, here(origin, "/SECRET?SECRET"), "http://SECRET:SECRET@x/", "http://no.example/SECRET", "SECRET://x/")
    ours = [record for record in caplog.records if record.name == "gateway.fetch.fetcher"]
    assert {record.levelno for record in ours} == {logging.DEBUG}
    said = {(record.__dict__["host"], record.__dict__["reason"]) for record in ours}
    assert said == {
        ("127.0.0.1", "The server answered with status 403."),
        ("-", "user name or password"),
        ("no.example", "no such host"),
        ("-", "scheme"),
    }
    assert "SECRET" not in "".join(str(vars(record)) for record in caplog.records)
    assert "SECRET" not in repr(Address("http://x/SECRET"))


def test_nothing_of_the_environment(origin: Origin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A proxy would resolve names by itself; a netrc would give away passwords."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    with nobody_comes() as port:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        origin.answers = {
            "/x.jpg": redirect("/y.jpg").replace(b"\r\n", b"\r\nSet-Cookie: a=b\r\n", 1),
            "/y.jpg": answer(),
        }
        assert fetch(fetcher(f"127.0.0.1:{origin.port}"), here(origin)) == [PICTURE]
    assert not any("cookie" in head.lower() or "authorization" in head.lower() for head in origin.asked)


def test_verification_is_on_by_default() -> None:
    """Certificates are checked, and the names in them."""
    context = fetcher(ssl_context=None)._ssl_context
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
