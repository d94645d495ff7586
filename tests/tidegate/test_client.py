"""One request, and what its answer means, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest

import tidegate.client
from tests.tidegate.stand_in import BAD, Reply, StandIn, serving
from tidegate.address import check_key, check_url
from tidegate.client import Answer, Client, Model
from tidegate.errors import GatewayAway, Refused, RequestFailed, TooLarge, Unanswered


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving(StandIn()) as server:
        yield server


def ask(url: str, *images: bytes, key: str | None = None, timeout_s: float = 10, **fields: str) -> Answer:
    async def once() -> Answer:
        async with Client(url, key=key, timeout_s=timeout_s) as client:
            return await client.ask("/v1/embed", images, fields)

    return asyncio.run(once())


def always(reply: Reply) -> Callable[[object], Reply]:
    return lambda request: reply


def test_files_and_fields_arrive_as_they_are(stand_in: StandIn) -> None:
    """Bytes that look like the form's own, or are empty, too; names of files stay here; the key is in its header."""
    images = (b"\r\n--x\r\n", b"", bytes(range(256)) * 50, BAD)
    answer = ask(stand_in.url, *images, key="tg_1_secret", model="m", encoding_format="base64")
    (request,) = stand_in.requests
    assert request.files == images
    assert request.fields == {"model": "m", "encoding_format": "base64"}
    assert request.headers["Authorization"] == "Bearer tg_1_secret"
    assert request.path == "/v1/embed"
    assert answer.model == Model("embedder", "1", 4)
    assert [result["status"] for result in answer.results] == ["ok", "error", "ok", "error"]


def test_an_answer_without_a_usable_image_is_an_answer(stand_in: StandIn) -> None:
    """422 no_usable_image has the results, and names no model."""
    answer = ask(stand_in.url, BAD, b"")
    assert answer.model is None
    assert [result["error"]["code"] for result in answer.results] == ["unsupported_image", "empty_image"]


@pytest.mark.parametrize(
    ("status", "code", "kind", "again"),
    [
        (400, "malformed_request", Refused, None),
        (401, "unauthorized", Refused, None),
        (404, "model_not_found", Refused, None),
        (405, "method_not_allowed", Refused, None),
        (408, "body_timeout", Unanswered, False),
        (413, "body_too_large", TooLarge, None),
        (413, "too_many_images", TooLarge, None),
        (415, "unsupported_encoding", Refused, None),
        (422, "invalid_parameter", Refused, None),
        (422, "missing_image", Refused, None),
        (429, "rate_limited", Unanswered, True),
        (500, "internal_error", Unanswered, False),
        (502, "bad_upstream_response", Unanswered, True),
        (503, "overloaded", Unanswered, True),
        (503, "upstream_unavailable", Unanswered, True),
        (503, "model_not_ready", Unanswered, True),
        (504, "deadline_exceeded", Unanswered, True),
        (302, "found", Refused, None),
    ],
)
def test_each_status_has_its_meaning(
    stand_in: StandIn, status: int, code: str, kind: type[Exception], again: bool | None
) -> None:
    """What may be sent again, what must be smaller, and what ends the run, with the code and the gateway's words."""
    stand_in.instead = always(Reply(status, code))
    with pytest.raises(kind, match=code) as caught:
        ask(stand_in.url, b"a")
    assert f"Because of {code}." in str(caught.value)
    if isinstance(caught.value, RequestFailed):
        assert caught.value.code == code
    if isinstance(caught.value, Unanswered):
        assert caught.value.again is again


def test_a_proxy_that_refuses_has_no_code(stand_in: StandIn) -> None:
    """A page of HTML with a status: 413 means a smaller body, 502 another time, 403 the end."""
    stand_in.instead = always(Reply(413, body=b"<html>"))
    with pytest.raises(TooLarge) as large:
        ask(stand_in.url, b"a")
    assert large.value.code == "body_too_large"
    stand_in.instead = always(Reply(502, body=b"<html>"))
    with pytest.raises(Unanswered, match="http_502: The answer was HTTP status 502"):
        ask(stand_in.url, b"a")
    stand_in.instead = always(Reply(403, body=b"[1]"))
    with pytest.raises(Refused, match="http_403"):
        ask(stand_in.url, b"a")


@pytest.mark.parametrize("code", ["\x1b[31mred", "two\nlines", "Upper", "x" * 65, 7, ["a"], "\ud800"])
def test_a_code_looks_like_a_code(stand_in: StandIn, code: object) -> None:
    """What does not is an unknown error; and the server's sentence is one line of what can be printed."""
    for status, kind in ((400, Refused), (413, TooLarge), (429, Unanswered), (500, Unanswered)):
        detail = "\x1b]0;title\x07first\r\nsecond\u2028third\ud800 " + "x" * 10_000
        stand_in.instead = always(Reply(status, body=json.dumps({"code": code, "detail": detail}).encode()))
        with pytest.raises(kind, match=r"unknown_error: \]0;title first second third x+…$") as caught:
            ask(stand_in.url, b"a")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("Fri, 99 Zzz", None),
        ("0" * 20 + "7", 7.0),
        ("99999999", 99999999.0),
        ("9" * 5000, 1e9),
        ("Fri, 01 Jan 99999999999 00:00:00 GMT", None),
        ("Fri, 01 Jan 2100 00:00:00 +999999999999", None),
    ],
)
def test_retry_after_in_seconds(stand_in: StandIn, value: str, seconds: float | None) -> None:
    """A whole number; anything else that is no date is as if nothing had been said."""
    stand_in.instead = always(Reply(503, "overloaded", {"Retry-After": value}))
    with pytest.raises(Unanswered) as caught:
        ask(stand_in.url, b"a")
    assert caught.value.retry_after == seconds


def test_retry_after_as_a_date(stand_in: StandIn) -> None:
    """As RFC 9110 allows, and proxies send."""
    for minutes, least, most in ((10, 500, 601), (-10, 0, 0)):
        when = format_datetime(datetime.now(timezone.utc) + timedelta(minutes=minutes), usegmt=True)
        stand_in.instead = always(Reply(429, "rate_limited", {"Retry-After": when}))
        with pytest.raises(Unanswered) as caught:
            ask(stand_in.url, b"a")
        assert caught.value.retry_after is not None
        assert least <= caught.value.retry_after <= most


def test_a_connection_that_breaks(stand_in: StandIn) -> None:
    """Before the answer, in the middle of it, and one that is never made: another time may do."""
    stand_in.instead = always(Reply(0))
    with pytest.raises(Unanswered) as caught:
        ask(stand_in.url, b"a")
    assert caught.value.code == "connection_lost"
    stand_in.instead = always(Reply(200, body=b"{", headers={"Content-Length": "100", "Connection": "close"}))
    with pytest.raises(Unanswered) as caught:
        ask(stand_in.url, b"a")
    assert caught.value.code == "connection_lost"
    with pytest.raises(Unanswered) as caught:
        ask(nobody(), b"a")
    assert caught.value.code == "connection_lost"


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_gateway_that_says_nothing(stand_in: StandIn) -> None:
    """The whole request has its time, and no more."""
    stand_in.hold_from = 1
    with pytest.raises(Unanswered, match=r"no answer within 0\.2 s") as caught:
        ask(stand_in.url, b"a", timeout_s=0.2)
    assert caught.value.code == "timeout"


HEAD = {"model": {"name": "m", "version": "1"}, "dim": 4}
_ODD: list[dict[str, Any]] = [
    {"dim": None},
    {"dim": 0},
    {"dim": -4},
    {"dim": True},
    {"dim": 4.0},
    {"dim": 10**18},
    {"model": {}},
    {"model": {"name": "m"}},
    {"model": {"name": "m", "version": 1}},
    {"model": {"name": None, "version": "1"}},
    {"model": {"name": "", "version": "1"}},
    {"model": {"name": "m", "version": " "}},
    {"model": {"name": "m\x1b[2J", "version": "1"}},
    {"model": {"name": "m", "version": "\ud800"}},
    {"model": {"name": "m" * 1000, "version": "1"}},
]


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"model": {"name": "m", "version": "1"}, "dim": 4}',
        b'{"model": {"name": "m", "version": "1"}, "dim": 4, "results": []}',
        b'{"model": {"name": "m", "version": "1"}, "dim": 4, "results": [{"index": 1}]}',
        b'{"model": "m", "dim": 4, "results": [{"index": 0}]}',
        b'{"model": {"name": "m", "version": "1"}, "dim": "4", "results": [{"index": 0}]}',
        b"[" * 100_000,
        *(
            json.dumps({**HEAD, **part, "results": [{"index": 0, "status": "error", "error": {}}]}).encode()
            for part in _ODD
        ),
    ],
)
def test_what_is_no_gateway_is_told_from_one(stand_in: StandIn, body: bytes) -> None:
    """An answer of another shape, or with another number of results, ends the run: nothing in it can be trusted."""
    stand_in.instead = always(Reply(200, body=body))
    with pytest.raises(Refused, match="does not answer as a Tidegate gateway does"):
        ask(stand_in.url, b"a")


def test_an_endless_answer_is_left(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of an answer is bounded."""
    monkeypatch.setattr(tidegate.client, "MOST_ANSWER_BYTES", 1000)
    stand_in.instead = always(Reply(200, body=json.dumps({"filler": "x" * 2000}).encode()))
    with pytest.raises(Unanswered, match="more than 1000 bytes"):
        ask(stand_in.url, b"a")


def test_somebody_or_nobody(stand_in: StandIn) -> None:
    """Before a run it is enough that somebody answers; whether a gateway is well `/readyz` says."""

    async def of(url: str) -> tuple[bool, bool]:
        async with Client(url, timeout_s=5) as client:
            try:
                await client.look()
            except GatewayAway:
                return False, await client.is_well()
            return True, await client.is_well()

    assert asyncio.run(of(stand_in.url)) == (True, True)
    stand_in.ready = False
    assert asyncio.run(of(stand_in.url)) == (True, False)
    assert asyncio.run(of(nobody())) == (False, False)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8080", "no address"),
        ("ftp://host", "no address"),
        ("http://", "no address"),
        ("http://alice:secret@host", "for everybody to see"),
        ("http://host?key=1", "query"),
    ],
)
def test_addresses(url: str, words: str) -> None:
    """What is no address is refused with what is wrong, and no password is repeated."""
    with pytest.raises(ValueError, match=words) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
    assert check_url("https://host:8080/tidegate/") == "https://host:8080/tidegate"


def test_keys() -> None:
    """Blanks around a key are not part of it; what cannot be one is refused, and not repeated."""
    assert check_key("  tg_12_abc\n") == "tg_12_abc"
    for text in ("", " \n", "two words", "two\nlines", "sch\u00f6n", "nul\0"):
        with pytest.raises(ValueError, match="no API key") as caught:
            check_key(text)
        assert not text.strip() or text.strip() not in str(caught.value)
