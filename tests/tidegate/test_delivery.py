"""A batch until each of its files has an answer, against a server that does as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.tidegate.stand_in import BAD, Reply, Request, StandIn, features, serving
from tidegate.client import Client, Model
from tidegate.delivery import Delivery, Retries
from tidegate.errors import GatewayAway, Problem, Refused
from tidegate.extraction import Embed
from tidegate.pace import Pace

FILES = [b"%d" % number for number in range(8)]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with serving(StandIn()) as server:
        yield server


def deliver(
    stand_in: StandIn, files: Sequence[bytes], retries: int = 3, slept: list[float] | None = None
) -> list[bytes | Problem]:
    slept = [] if slept is None else slept

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def once() -> list[bytes | Problem]:
        async with Client(stand_in.url, timeout_s=10) as client:
            pace = Pace(sleep=sleep, clock=lambda: sum(slept))
            answered: list[Model] = []
            outcomes = await Delivery(client, Embed(), pace, Retries(retries), answered.append, sleep).deliver(files)
            assert set(answered) <= {Model("embedder", "1", 4)}
            return outcomes

    return asyncio.run(once())


def right(*files: bytes) -> list[bytes]:
    return [features(file).tobytes() for file in files]


def test_answers_are_in_the_order_of_files(stand_in: StandIn) -> None:
    """Each file has what was kept of its own answer, or the gateway's error; an error of a file is not asked again."""
    outcomes = deliver(stand_in, [b"a", BAD, b"b", b""])
    assert outcomes == [
        *right(b"a"),
        Problem("unsupported_image", "It is no image."),
        *right(b"b"),
        Problem("empty_image", "The file is empty."),
    ]
    assert len(stand_in.requests) == 1


@pytest.mark.parametrize("status", [0, 429, 502, 503, 504])
def test_what_may_pass_is_sent_again(stand_in: StandIn, status: int) -> None:
    """After a broken connection and these statuses, with longer and longer waits."""
    stand_in.instead = lambda request: Reply(status, "busy") if len(stand_in.requests) <= 3 else None
    slept: list[float] = []
    assert deliver(stand_in, FILES, slept=slept) == right(*FILES)
    assert len(stand_in.requests) == 4
    assert [0.25 * 2**i <= wait <= 0.5 * 2**i for i, wait in enumerate(slept)] == [True] * 3


def test_retry_after_is_waited_for(stand_in: StandIn) -> None:
    """When the gateway says for how long, it is at least that long."""
    stand_in.instead = lambda request: (
        Reply(503, "overloaded", {"Retry-After": "17"}) if len(stand_in.requests) == 1 else None
    )
    slept: list[float] = []
    assert deliver(stand_in, FILES, slept=slept) == right(*FILES)
    assert slept == [17]


@pytest.mark.parametrize("retries", [0, 3])
def test_a_long_retry_after_is_not_waited_for(stand_in: StandIn, retries: int) -> None:
    """Five minutes are; for more the run ends at once, and says how long it was asked to wait."""
    slept: list[float] = []
    asked = iter(["301", "300", "301"])
    stand_in.instead = lambda request: Reply(429, "rate_limited", {"Retry-After": next(asked)})
    sentence = r"left alone for 5 min 1 s \(rate_limited\), and a run waits for 5 min 0 s"
    with pytest.raises(GatewayAway, match=sentence):
        deliver(stand_in, FILES, retries, slept)
    assert slept == []
    if retries:
        with pytest.raises(GatewayAway, match=sentence):
            deliver(stand_in, FILES, retries, slept)
        assert slept == [300]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_other_errors_of_the_caller_are_not_sent_again(stand_in: StandIn, status: int) -> None:
    """They would be answered in the same way, for every batch: one request, and the run ends."""
    stand_in.instead = lambda request: Reply(status, "some_code")
    with pytest.raises(Refused, match="some_code"):
        deliver(stand_in, FILES)
    assert len(stand_in.requests) == 1


def test_too_many_images_are_cut_and_remembered(stand_in: StandIn) -> None:
    """A gateway that takes three images a request gets two; and the next batch is not too large again."""
    stand_in.instead = lambda request: Reply(413, "too_many_images") if len(request.files) > 3 else None

    async def twice() -> None:
        async with Client(stand_in.url, timeout_s=10) as client:
            delivery = Delivery(client, Embed(), Pace(), Retries(0), lambda model: None)
            assert await delivery.deliver(FILES) == right(*FILES)
            before = len(stand_in.requests)
            assert await delivery.deliver(FILES) == right(*FILES)
            assert [len(request.files) for request in stand_in.requests[before:]] == [2, 2, 2, 2]

    asyncio.run(twice())


def test_a_body_that_is_too_large_is_cut(stand_in: StandIn) -> None:
    """Down to one file, whose own error it then is, and nobody else's."""
    stand_in.instead = lambda request: Reply(413, "body_too_large") if sum(map(len, request.files)) > 100 else None
    outcomes = deliver(stand_in, [b"a" * 60, b"b" * 60, b"c" * 101, b"d"])
    assert outcomes[:2] == right(b"a" * 60, b"b" * 60)
    assert isinstance(outcomes[2], Problem)
    assert (outcomes[2].code, outcomes[2].passing) == ("body_too_large", False)
    assert outcomes[3:] == right(b"d")


@pytest.mark.parametrize("status", [0, 500, 504])
def test_one_file_that_spoils_its_batch_is_found(stand_in: StandIn, status: int) -> None:
    """The gateway is well, and this batch never comes through: in halves, so that seven of eight have their answers."""
    stand_in.instead = lambda request: Reply(status, "broken") if b"5" in request.files else None
    outcomes = deliver(stand_in, FILES, retries=1)
    assert [isinstance(each, Problem) for each in outcomes] == [file == b"5" for file in FILES]
    assert isinstance(outcomes[5], Problem)
    assert (outcomes[5].code, outcomes[5].passing) == ("connection_lost" if not status else "broken", True)
    assert [each for each in outcomes if isinstance(each, bytes)] == right(*(file for file in FILES if file != b"5"))


def test_a_gateway_that_is_busy_for_too_long(stand_in: StandIn) -> None:
    """After so many tries the files have that error, which may pass: cutting the batch would only add load."""
    stand_in.instead = lambda request: Reply(503, "overloaded", {"Retry-After": "1"})
    outcomes = deliver(stand_in, FILES, retries=2)
    assert outcomes == [Problem("overloaded", "Because of overloaded.", passing=True)] * 8
    assert len(stand_in.requests) == 3


def test_a_gateway_that_is_not_well_ends_the_run(stand_in: StandIn) -> None:
    """After all tries, so that millions of files do not get an error each for one outage."""
    stand_in.instead = lambda request: Reply(503, "upstream_unavailable", {"Retry-After": "1"})
    stand_in.ready = False
    with pytest.raises(GatewayAway, match="upstream_unavailable"):
        deliver(stand_in, FILES, retries=2)
    assert len(stand_in.requests) == 3


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"status": "odd"},
        {"status": "ok"},
        {"status": "ok", "embedding": "***"},
        {"status": "ok", "embedding": "AAAA"},
        {"status": "ok", "embedding": base64.b64encode(bytes(20)).decode()},
        {"status": "ok", "embedding": [1, 2, 3]},
        {"status": "ok", "embedding": [1, 2, 3, "x"]},
        {"status": "ok", "embedding": [1, 2, 3, True]},
        {"status": "ok", "embedding": [1, 2, 3, 10**400]},
        {"status": "ok", "embedding": [[1, 2], [3, 4]]},
        {"status": "ok", "embedding": ""},
        {"status": "ok", "embedding": "\ud800"},
        {"status": "ok", "embedding": None},
        {"status": "error"},
    ],
)
def test_a_result_that_no_gateway_gives(stand_in: StandIn, result: dict[str, Any]) -> None:
    """Without features, or of another length than `dim`: the run ends, because nothing in such answers can be
    trusted."""
    stand_in.instead = after_a_good_one(result)
    with pytest.raises(Refused, match="does not answer as a Tidegate gateway does"):
        deliver(stand_in, [b"a", b"b"])


@pytest.mark.parametrize(
    "embedding", [base64.b64encode(bytes.fromhex("0000c07f") * 4).decode(), [1, 2, 3, 1e39], [1, 2, 3, float("nan")]]
)
def test_features_that_are_no_numbers(stand_in: StandIn, embedding: object) -> None:
    """NaN, and what FP32 cannot hold, is that file's error, and nothing is made up."""
    stand_in.instead = after_a_good_one({"status": "ok", "embedding": embedding})
    outcomes = deliver(stand_in, [b"a", b"b"])
    assert outcomes[:1] == right(b"a")
    assert isinstance(outcomes[1], Problem)
    assert (outcomes[1].code, outcomes[1].passing) == ("bad_answer", True)


def after_a_good_one(result: dict[str, Any]) -> Callable[[Request], Reply]:
    """An answer for two files; the result of the second is `result`."""
    good = {"index": 0, "status": "ok", "embedding": base64.b64encode(features(b"a").tobytes()).decode()}
    body = {"model": {"name": "embedder", "version": "1"}, "dim": 4, "results": [good, {"index": 1, **result}]}
    return lambda request: Reply(200, body=json.dumps(body).encode())
