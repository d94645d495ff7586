"""What every answer has."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from tests.pictures import encode, noise
from tests.servers import metric, running_gateway


class BrokenTriton(FakeTriton):
    """Fails in a way that nobody foresaw, once it is armed."""

    armed = False

    async def infer(self, *args, **options):  # type: ignore[no-untyped-def]
        if self.armed:
            raise RuntimeError("at /secret/path object at 0x7f00")
        return await super().infer(*args, **options)


@pytest.fixture
def broken() -> Iterator[tuple[httpx.Client, BrokenTriton]]:
    """A gateway whose insides can be made to fail."""
    triton = BrokenTriton()
    with running_gateway(Settings(), triton) as client:
        client.get("/readyz")
        yield client, triton


def test_a_fault_of_ours_is_a_problem_document(broken: tuple[httpx.Client, BrokenTriton]) -> None:
    """An unforeseen exception is a 500 with the request id and not a word of the exception."""
    client, triton = broken
    triton.armed = True
    answer = client.post("/v1/classify", content=encode(noise(8, 8)), headers={"x-request-id": "look-me-up"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal_error"
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "look-me-up"
    assert "secret" not in answer.text
    assert client.get("/livez").status_code == 200
    triton.armed = False


@pytest.mark.parametrize("sane", ["abc-123", "A.b_c", "x" * 128])
def test_a_sane_request_id_is_kept(client: httpx.Client, sane: str) -> None:
    """The caller's id comes back."""
    assert client.get("/livez", headers={"x-request-id": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize("odd", ["", "a b", "x" * 129, "é", '"><script>', "a\tb"])
def test_an_odd_request_id_is_replaced(client: httpx.Client, odd: str) -> None:
    """What could break a log or a page is not repeated."""
    answer = client.get("/livez", headers=[(b"x-request-id", odd.encode())])
    assert answer.headers["x-request-id"] != odd
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", ["/livez", "/nowhere", "/v1/models", "/openapi.json", "/"])
def test_every_answer_has_an_id_and_timings(client: httpx.Client, path: str) -> None:
    """Successes and errors alike."""
    answer = client.get(path)
    assert answer.headers["x-request-id"]
    assert answer.headers["server-timing"].startswith("total;dur=")


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    """404 and 405 are problem documents too."""
    answer = client.get("/nowhere")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    answer = client.get("/v1/classify")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    answer = client.post("/livez")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_callers_do_not_make_series(client: httpx.Client) -> None:
    """No metric label takes a value from a caller."""

    def series() -> int:
        return len(client.get("/metrics").text.splitlines())

    picture = encode(noise(8, 8))

    def scan(i: int) -> None:
        client.get(f"/scan/{i}.php")
        client.request(f"M{i}", "/livez")
        client.get(f"/v1/models/m{i}")
        client.post("/v1/classify", params={"model": f"m{i}"}, files={"files": (f"{i}.jpg", picture)})

    scan(0)
    before = series()
    for i in range(1, 40):
        scan(i)
    assert series() == before


def test_requests_are_counted_by_route(client: httpx.Client) -> None:
    """A request counts under its route's template, with its status."""
    before = metric(client, "tidegate_http_requests_total", route="/v1/models/{name}", status="404")
    client.get("/v1/models/nope")
    after = metric(client, "tidegate_http_requests_total", route="/v1/models/{name}", status="404")
    assert after - before == 1
