"""Who may call: keys, rates, proxies, CORS and the headers of every answer, on a real socket."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from gateway.access.keys import add_key, remove_key
from gateway.app import _routers, create_app
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise
from tests.servers import metric, running_gateway

PICTURE = encode(noise(8, 8), "JPEG")
PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)


@dataclass
class Guarded:
    """A gateway that asks for keys: a client of it, its file, and three keys."""

    client: httpx.Client
    file: Path
    alice: str
    scoped: str
    expired: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """`scoped` may ask a model that is not there; `expired` has had its time."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    _, alice = add_key(file, "alice")
    _, scoped = add_key(file, "scoped", models=("flowers",))
    _, expired = add_key(file, "expired", expires=PAST)
    with running_gateway(Settings(api_keys_file=file, access_log=True), FakeTriton()) as client:
        client.get("/readyz")
        yield Guarded(client, file, alice, scoped, expired)


# Keys


@pytest.mark.parametrize("header", ["Authorization: Bearer {}", "authorization: bearer  {}", "X-API-Key: {}"])
def test_a_key_lets_in(guarded: Guarded, header: str) -> None:
    """As a bearer token, or in a header of its own."""
    name, _, value = header.format(guarded.alice).partition(": ")
    answer = guarded.client.post("/v1/classify", content=PICTURE, headers={name: value})
    assert answer.status_code == 200
    assert guarded.client.get("/v1/models", headers={name: value}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer tg_000000000000_" + 43 * "A"},
        {"X-API-Key": ""},
        {"X-API-Key": "tg_" + 4000 * "0"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/models", "/v1/models/ensemble_model"])
def test_without_one_nobody_gets_in(guarded: Guarded, headers: dict[str, str], path: str) -> None:
    """401, a problem document that says how, and `WWW-Authenticate`."""
    method = "POST" if path == "/v1/classify" else "GET"
    answer = guarded.client.request(method, path, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_is_wrong_with_a_key_is_said_to_its_owner_only(guarded: Guarded) -> None:
    """An unknown id and a wrong secret look the same; who has an expired key learns that."""

    def detail(key: str) -> str:
        answer = guarded.client.get("/v1/models", headers={"X-API-Key": key})
        assert answer.status_code == 401
        return str(answer.json()["detail"])

    assert detail(guarded.alice[:16] + 43 * "A") == detail("tg_000000000000_" + guarded.alice[16:])
    assert "expired" in detail(guarded.expired)
    assert "expired" not in detail(guarded.expired[:16] + 43 * "A")


def test_two_different_keys_are_refused(guarded: Guarded) -> None:
    """Whose request it is must not depend on who reads it; the same key twice is fine."""

    def status(other: str) -> int:
        headers = {"Authorization": f"Bearer {guarded.alice}", "X-API-Key": other}
        return guarded.client.get("/v1/models", headers=headers).status_code

    assert status(guarded.scoped) == 401
    assert status(guarded.alice) == 200


def test_all_routes_under_v1_ask_for_a_key(guarded: Guarded) -> None:
    """Those that are yet to come, too."""
    routes = [r for router in _routers(Settings()) for r in router.routes if isinstance(r, APIRoute)]
    asked = [(method, r.path) for r in routes for method in r.methods or () if r.path.startswith("/v1")]
    assert len(asked) >= 3
    statuses = {each: guarded.client.request(*each).status_code for each in asked}
    assert set(statuses.values()) == {401}, statuses


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/", "/docs", "/openapi.json"])
def test_the_rest_is_open(guarded: Guarded, path: str) -> None:
    """Probes, scrapes and pages need no key."""
    assert guarded.client.get(path).status_code == 200


def test_the_document_says_that_a_key_is_needed(guarded: Guarded) -> None:
    """In the words of OpenAPI, where it is so."""
    page = guarded.client.get("/openapi.json").json()
    assert page["paths"]["/v1/classify"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert "security" not in page["paths"]["/livez"]["get"]
    assert set(page["components"]["securitySchemes"]) == {"bearer", "header"}
    assert "security" not in str(create_app(Settings(), FakeTriton()).openapi())


def test_other_models_are_not_there(guarded: Guarded) -> None:
    """A key for some models learns nothing of the others, in no way: neither names nor states."""
    key = {"X-API-Key": guarded.scoped}

    def answers(name: str) -> list[object]:
        asked = guarded.client.post("/v1/classify", params={"model": name}, content=PICTURE, headers=key)
        looked = guarded.client.get(f"/v1/models/{name}", headers=key)
        return [(a.status_code, {**a.json(), "request_id": ""}) for a in (asked, looked)]

    assert answers("ensemble_model") == answers("no_such_model") == answers("flowers")
    assert guarded.client.post("/v1/classify", content=PICTURE, headers=key).json()["code"] == "model_not_found"
    assert guarded.client.get("/v1/models", headers=key).json()["data"] == []
    listed = guarded.client.get("/v1/models", headers={"X-API-Key": guarded.alice}).json()["data"]
    assert [model["id"] for model in listed] == ["ensemble_model"]


def test_a_key_for_the_model_that_it_asks(tmp_path: Path) -> None:
    """It is served, and sees that model."""
    _, key = add_key(tmp_path / "keys.json", "alice", models=("ensemble_model", "flowers"))
    with running_gateway(Settings(api_keys_file=tmp_path / "keys.json"), FakeTriton()) as client:
        client.headers["X-API-Key"] = key
        assert client.post("/v1/classify", content=PICTURE).status_code == 200
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["ensemble_model"]


def test_keys_change_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one counts, a removed one does not, without a restart."""
    monkeypatch.setattr("gateway.access.keys.FRESH_S", 0)
    file = tmp_path / "keys.json"
    _, first = add_key(file, "first")
    with running_gateway(Settings(api_keys_file=file), FakeTriton()) as client:
        _, second = add_key(file, "second")
        assert client.get("/v1/models", headers={"X-API-Key": second}).status_code == 200
        remove_key(file, "first")
        assert client.get("/v1/models", headers={"X-API-Key": first}).status_code == 401


def raw(client: httpx.Client, request: bytes) -> bytes:
    """What comes back until the server closes, or has answered and waits."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=5) as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
            if b"request_id" in received and b"}" in received:
                break
        return received


def test_a_caller_that_waits_is_refused_before_its_body(guarded: Guarded) -> None:
    """`Expect: 100-continue`: the 401 comes instead of the 100, and the connection closes."""
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    answer = raw(guarded.client, head)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in answer
    assert b"\r\nconnection: close\r\n" in answer.lower()


def test_a_body_that_comes_anyway_is_not_taken_for_a_request(guarded: Guarded) -> None:
    """A small one passes, and the connection goes on; of a large one no more is read than elsewhere."""
    two = (
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 27\r\n\r\nGET /livez HTTP/1.1\r\nX: y\r\n"
        b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((guarded.client.base_url.host, guarded.client.base_url.port), timeout=5) as own:
        own.sendall(two)
        received = b""
        while chunk := own.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 401 ") == 1
    assert received.count(b"HTTP/1.1 200 ") == 1
    large = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n" + bytes(2**21)
    assert b"connection: close" in raw(guarded.client, large).lower()


def test_refusals_are_counted_and_names_are_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """By reason, without the key's name; the access log has the name, and neither has the key."""
    before = metric(guarded.client, "tidegate_rejected_total", reason="unauthorized")
    with caplog.at_level(logging.INFO, "gateway.access"):
        guarded.client.get("/v1/models")
        guarded.client.get("/v1/models", headers={"X-API-Key": guarded.alice})
    assert metric(guarded.client, "tidegate_rejected_total", reason="unauthorized") == before + 1
    lines = [record for record in caplog.records if record.name == "gateway.access"]
    assert [getattr(record, "key", None) for record in lines[:2]] == [None, "alice"]
    for text in (guarded.client.get("/metrics").text, str([vars(record) for record in caplog.records])):
        assert guarded.alice not in text
        assert guarded.alice[16:] not in text
    assert "alice" not in guarded.client.get("/metrics").text


# Rates


@pytest.fixture
def limited(fake: FakeTriton) -> Iterator[httpx.Client]:
    """Ten images a day for each address, with 127.0.0.1 as a proxy of ours."""
    settings = Settings(rate_limit="10/day", trusted_proxies="127.0.0.0/8", cors_origins="https://app.example.com")
    with running_gateway(settings, fake) as client:
        client.get("/readyz")
        yield client


def classify(client: httpx.Client, address: str, images: int = 1) -> httpx.Response:
    files = [("files", ("a.jpg", PICTURE))] * images
    return client.post("/v1/classify", files=files, headers={"X-Forwarded-For": address})


def test_a_caller_has_its_share(limited: httpx.Client) -> None:
    """Images count; 429 says when to come again; others are not concerned, nor is what asks no Triton."""
    assert classify(limited, "198.51.100.1", images=8).status_code == 200
    assert classify(limited, "198.51.100.1", images=3).status_code == 429
    assert classify(limited, "198.51.100.1").status_code == 200  # one of the three was counted at the door
    refused = classify(limited, "198.51.100.1")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 2 * 86400
    assert "10 images per day" in refused.json()["detail"]
    assert classify(limited, "198.51.100.2").status_code == 200
    assert limited.get("/v1/models", headers={"X-Forwarded-For": "198.51.100.1"}).status_code == 200
    assert metric(limited, "tidegate_rejected_total", reason="rate_limited") >= 2


def test_a_refused_caller_is_not_read(limited: httpx.Client) -> None:
    """Its body stays where it is."""
    assert classify(limited, "198.51.100.3", images=10).status_code == 200
    answer = raw(
        limited,
        b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n"
        b"X-Forwarded-For: 198.51.100.3\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 429 ")


def test_addresses_of_one_network_are_one_caller(limited: httpx.Client) -> None:
    """Whoever has an IPv6 address has 2^64 of them."""
    assert classify(limited, "2001:db8::1", images=10).status_code == 200
    assert classify(limited, "2001:db8::2").status_code == 429
    assert classify(limited, "2001:db8:0:1::1").status_code == 200


def test_a_request_larger_than_the_limit_can_be_made(limited: httpx.Client) -> None:
    """It takes all of it."""
    assert classify(limited, "198.51.100.4", images=30).status_code == 200
    assert classify(limited, "198.51.100.4").status_code == 429


def test_keys_are_counted_each_for_itself(tmp_path: Path) -> None:
    """Two keys behind one address have two shares."""
    made = [add_key(tmp_path / "keys.json", name)[1] for name in ("alice", "bob")]
    with running_gateway(Settings(api_keys_file=tmp_path / "keys.json", rate_limit="2/day"), FakeTriton()) as client:
        found = [
            client.post("/v1/classify", content=PICTURE, headers={"X-API-Key": key}).status_code
            for key in made
            for _ in range(3)
        ]
    assert found == [200, 200, 429] * 2


def test_nobody_says_who_he_is_by_default() -> None:
    """X-Forwarded-For of a stranger is not looked at."""
    with running_gateway(Settings(rate_limit="2/day"), FakeTriton()) as client:
        statuses = [classify(client, f"198.51.100.{i}").status_code for i in range(3)]
    assert statuses == [200, 200, 429]


# Browsers

ORIGIN = {"Origin": "https://app.example.com"}


def test_cors_is_off(client: httpx.Client) -> None:
    """No origin gets a header."""
    answer = client.get("/livez", headers=ORIGIN)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    ask = {**ORIGIN, "Access-Control-Request-Method": "POST"}
    assert client.options("/v1/classify", headers=ask).status_code == 405


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("https://app.example.com, http://localhost:5173", "https://app.example.com", "https://app.example.com"),
        ("https://app.example.com, http://localhost:5173", "http://localhost:5173", "http://localhost:5173"),
        ("https://app.example.com", "https://evil.example.com", None),
        ("https://app.example.com", "null", None),
        ("*", "https://evil.example.com", "*"),
    ],
)
def test_origins_that_are_allowed(tmp_path: Path, origins: str, origin: str, allowed: str | None) -> None:
    """Their preflight needs no key, and every answer, refusals and faults too, can be read by their pages."""
    add_key(tmp_path / "keys.json", "alice")
    triton = FakeTriton()
    settings = Settings(cors_origins=origins, api_keys_file=tmp_path / "keys.json")
    with running_gateway(settings, triton) as client:
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        preflight = client.options("/v1/classify", headers={"Origin": origin, **asked})
        assert preflight.status_code == (200 if allowed else 400)
        assert preflight.headers["x-request-id"]
        answers = [preflight]
        answers += [client.get(path, headers={"Origin": origin}) for path in ("/v1/models", "/livez", "/nowhere")]
        assert [answer.status_code for answer in answers[1:]] == [401, 200, 404]
        for answer in answers:
            assert answer.headers.get("access-control-allow-origin") == allowed
            assert "access-control-allow-credentials" not in answer.headers


def test_a_page_can_read_why_it_was_refused(limited: httpx.Client) -> None:
    """A 429, and how long to wait."""
    assert classify(limited, "198.51.100.9", images=10).status_code == 200
    refused = limited.post("/v1/classify", headers={**ORIGIN, "X-Forwarded-For": "198.51.100.9"})
    assert refused.status_code == 429
    assert refused.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert "Retry-After" in refused.headers["access-control-expose-headers"]


class BrokenTriton(FakeTriton):
    """Fails in a way that nobody foresaw, once it is armed."""

    armed = False

    async def infer(self, *args, **options):  # type: ignore[no-untyped-def]
        if self.armed:
            raise RuntimeError("unforeseen")
        return await super().infer(*args, **options)


def test_a_page_can_read_of_a_fault_of_ours() -> None:
    """A 500 has the same headers."""
    triton = BrokenTriton()
    with running_gateway(Settings(cors_origins="*"), triton) as client:
        client.get("/readyz")
        triton.armed = True
        answer = client.post("/v1/classify", content=PICTURE, headers=ORIGIN)
    assert answer.status_code == 500
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "path", ["/livez", "/v1/models", "/v1/models/x", "/nowhere", "/metrics", "/openapi.json", "/docs", "/"]
)
def test_every_answer_is_safe_in_a_browser(client: httpx.Client, path: str) -> None:
    """Not sniffed, not framed, not kept, and no word of where from."""
    headers = client.get(path).headers
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert headers.get_list("referrer-policy") == ["no-referrer"]
    assert headers.get_list("x-frame-options") == ["DENY"]
    assert headers.get_list("cache-control") == ["no-cache" if path == "/" else "no-store"]
    assert ("content-security-policy" in headers) == (path == "/")


def test_refusals_of_the_protocol_are_safe_too(client: httpx.Client) -> None:
    """What is no HTTP is answered with the same headers."""
    answer = raw(client, b"NOT HTTP\r\n\r\n").lower()
    for line in (b"x-content-type-options: nosniff", b"x-frame-options: deny", b"cache-control: no-store"):
        assert line in answer


# Closing


def test_pages_can_be_closed() -> None:
    """The viewer, the document and the page; the API goes on."""
    with running_gateway(Settings(docs=False), FakeTriton()) as client:
        closed = [client.get(path).status_code for path in ("/docs", "/openapi.json", "/", "/page.js", "/redoc")]
        assert closed == [404] * 5
        assert client.post("/v1/classify", content=PICTURE).status_code == 200


@pytest.mark.parametrize("settings", [Settings(metrics=False), Settings(metrics_port=9)])
def test_metrics_can_be_closed_or_elsewhere(settings: Settings) -> None:
    """Then they are not on this port."""
    with running_gateway(settings, FakeTriton()) as client:
        assert client.get("/metrics").status_code == 404
        assert client.get("/livez").status_code == 200
