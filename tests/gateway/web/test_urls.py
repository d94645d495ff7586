"""Images by address, through the whole gateway."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx
import pytest

from gateway.fetch.fetcher import OUTCOMES
from gateway.settings import Settings
from gateway.triton.fake import FakeTriton
from gateway.web.schemas import ClassifyResponse
from tests.gateway.fetch.origins import PICTURE, Origin, answer, nobody_comes, running, then_silence
from tests.servers import metric, running_gateway

SENT = {"data": base64.b64encode(PICTURE).decode()}


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A server of pictures on this machine."""
    answers = {
        "/x.jpg?signature=SECRET": answer(),
        "/page": answer(b"<html>" + bytes(1000), "Content-Type: image/png"),
        "/cut.jpg": answer(PICTURE[:-10]),
        "/slow": then_silence(b""),
        "/large": answer(PICTURE + bytes(60_000)),
    }
    with running(answers) as origin:
        yield origin


@pytest.fixture(scope="module")
def client(origin: Origin) -> Iterator[httpx.Client]:
    """A gateway that fetches from it."""
    settings = Settings(
        allow_urls=True,
        url_allowed_hosts=f"*, 127.0.0.1:{origin.port}",
        url_allowed_networks="127.0.0.0/8",
        max_body_bytes=100_000,
    )
    with running_gateway(settings, FakeTriton()) as client:
        client.get("/readyz")
        yield client


def classify(client: httpx.Client, *images: dict[str, str], **headers: str) -> httpx.Response:
    return client.post("/v1/classify", json={"images": list(images)}, headers=headers)


def codes(answer: httpx.Response) -> list[str]:
    return [r["error"]["code"] if r["status"] == "error" else "ok" for r in answer.json()["results"]]


def url(origin: Origin, path: str) -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{origin.port}{path}"}


def test_an_address_is_as_good_as_the_bytes(client: httpx.Client, origin: Origin) -> None:
    """The same predictions, in the order asked, with each problem in its place."""
    images = [url(origin, "/cut.jpg"), SENT, url(origin, "/page"), url(origin, "/x.jpg?signature=SECRET")]
    answer = classify(client, *images, url(origin, "/x.jpg?signature=SECRET"), {"url": "http://10.0.0.1/x.jpg"})
    assert codes(answer) == ["corrupt_image", "ok", "unsupported_image", "ok", "ok", "url_forbidden"]
    results = answer.json()["results"]
    assert results[1]["predictions"] == results[3]["predictions"] == results[4]["predictions"]
    assert "SECRET" not in answer.text


def test_the_time_of_fetching_is_shown(client: httpx.Client, origin: Origin) -> None:
    """In the body and in Server-Timing, where something was fetched, and only there."""
    fetched = classify(client, url(origin, "/x.jpg?signature=SECRET"))
    body = ClassifyResponse.model_validate(fetched.json(), strict=True)
    assert body.timings_ms.fetch is not None
    assert "fetch;dur=" in fetched.headers["server-timing"]
    sent = classify(client, SENT)
    assert "fetch" not in sent.json()["timings_ms"]
    assert "fetch" not in sent.headers["server-timing"]


def test_when_nothing_could_be_fetched(client: httpx.Client) -> None:
    """The request has no usable image, and says why of each."""
    answer = classify(client, {"url": "http://169.254.169.254/latest/meta-data/"}, {"url": "file:///etc/passwd"})
    assert (answer.status_code, answer.json()["code"], codes(answer)) == (422, "no_usable_image", ["url_forbidden"] * 2)


def test_errors_of_the_request(client: httpx.Client, origin: Origin) -> None:
    """The deadline and the size of all images together are the request's, as for bytes that are sent."""
    late = classify(client, SENT, url(origin, "/slow"), **{"X-Request-Timeout": "0.2"})
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    large = classify(client, *[url(origin, "/large")] * 2)
    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
    assert codes(classify(client, url(origin, "/large"))) == ["ok"]
    assert metric(client, "tidegate_in_flight_images") == 0


def test_nothing_is_fetched_for_a_request_that_is_refused(client: httpx.Client, origin: Origin) -> None:
    """Its parameters and its model are looked at first."""
    asked = len(origin.asked)
    document = {"images": [url(origin, "/x.jpg?signature=SECRET")]}
    assert client.post("/v1/classify", json={**document, "top_k": 99}).status_code == 422
    assert client.post("/v1/classify", json={**document, "model": "none"}).status_code == 404
    assert len(origin.asked) == asked


def test_fetches_are_counted(client: httpx.Client, origin: Origin) -> None:
    """Every outcome is there from the start, at zero."""
    before = metric(client, "tidegate_url_fetches_total", outcome="ok")
    classify(client, url(origin, "/x.jpg?signature=SECRET"))
    assert metric(client, "tidegate_url_fetches_total", outcome="ok") == before + 1
    text = client.get("/metrics").text
    assert all(f'tidegate_url_fetches_total{{outcome="{outcome}"}}' in text for outcome in OUTCOMES)


def test_off_by_default(origin: Origin) -> None:
    """Not a packet goes out."""
    with nobody_comes() as port, running_gateway(Settings(), FakeTriton()) as client:
        answer = classify(client, {"url": f"http://127.0.0.1:{port}/"}, SENT)
    assert codes(answer) == ["url_forbidden", "ok"]
    assert "fetch" not in answer.json()["timings_ms"]


def test_on_without_exceptions() -> None:
    """Where it is turned on and no more, this machine stays out of reach."""
    settings = Settings(allow_urls=True, url_allowed_hosts="*:8001, *")
    with nobody_comes() as port, running_gateway(settings, FakeTriton()) as client:
        hosts = ["127.0.0.1", "[::1]", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0"]
        urls = [{"url": f"http://{host}{end}/"} for host in hosts for end in ("", ":8001", f":{port}")]
        assert set(codes(classify(client, *urls))) == {"url_forbidden"}
