"""Through the gateway and a real Triton with the probe classifier: every value is known exactly."""

from __future__ import annotations

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.model_repository.test_guard import heavy
from tests.pictures import BLUE, GREEN, RED, WHITE, Colour, encode, noise, quadrants, solid
from tests.servers import metric

SLEEP, NAN = 13, (14, 14, 14)


def classify(gate: httpx.Client, *files: bytes, **options: Any) -> httpx.Response:
    query: dict[str, str | int] = {"model": "probe_ensemble", "top_k": 12}
    parts = [("files", (f"{i}", file)) for i, file in enumerate(files)]
    return gate.post("/v1/classify", params=query, files=parts, **options)


def means(result: dict[str, Any]) -> list[Colour]:
    """The four quadrants' colours that a result tells."""
    values = {p["class_id"]: p["probability"] for p in result["predictions"]}
    return [(values[i], values[i + 1], values[i + 2]) for i in range(0, 12, 3)]


def colours(answer: httpx.Response) -> list[list[Colour]]:
    assert answer.status_code == 200, answer.text
    return [means(result) for result in answer.json()["results"]]


def test_every_quadrant_and_channel_is_in_its_place(gate: httpx.Client) -> None:
    """Red, green, blue and white come out where they went in, under the right labels."""
    answer = classify(gate, encode(quadrants(RED, GREEN, BLUE, WHITE)))
    assert colours(answer) == [[RED, GREEN, BLUE, WHITE]]
    labels = {p["class_id"]: p["label"] for p in answer.json()["results"][0]["predictions"]}
    assert (labels[0], labels[4], labels[8]) == ("top left red", "top right green", "bottom left blue")


@pytest.mark.parametrize("count", [31, 32, 33, 65])
def test_more_images_than_a_batch(gate: httpx.Client, count: int) -> None:
    """N-1, N, N+1 and 2N+1 images, N Triton's own limit: all answered, in order."""
    shades = [(i, 255 - i, 2 * i % 256) for i in range(100, 100 + count)]
    answer = classify(gate, *(encode(solid(shade)) for shade in shades))
    assert colours(answer) == [[shade] * 4 for shade in shades]


def test_colours_of_many_sizes_under_concurrency(gate: httpx.Client) -> None:
    """64 colours in 4 sizes, 300 requests of 1 to 8 images, 32 at a time: each answer is its own colour."""
    levels = (0, 80, 160, 240)
    shades = list(itertools.product(levels, levels, levels))
    sizes = [(16, 16), (64, 48), (200, 300), (500, 40)]
    files = {(shade, size): encode(solid(shade, size), "BMP") for shade in shades for size in sizes}
    keys, rng = list(files), np.random.default_rng(0)
    wanted = [[keys[i] for i in rng.integers(0, len(keys), rng.integers(1, 9))] for _ in range(300)]

    def ask(request: list[tuple[Colour, tuple[int, int]]]) -> bool:
        answer = classify(gate, *(files[key] for key in request))
        return colours(answer) == [[shade] * 4 for shade, _ in request]

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(ask, wanted))


def test_good_and_corrupt_clients_side_by_side(gate: httpx.Client) -> None:
    """Merged by the dynamic batcher or not, a corrupt neighbour changes nothing."""
    good = encode(quadrants(RED, GREEN, BLUE, WHITE))
    damaged = bytearray(encode(noise(200, 200)))
    damaged[len(damaged) // 2] ^= 0xFF

    def ask(i: int) -> tuple[int, Any]:
        if i % 2:
            answer = classify(gate, bytes(damaged))
            return answer.status_code, answer.json()["results"][0]["error"]["code"]
        return 200, colours(classify(gate, good))

    with ThreadPoolExecutor(8) as pool:
        for i, outcome in enumerate(pool.map(ask, range(100))):
            assert outcome == ((422, "corrupt_image") if i % 2 else (200, [[RED, GREEN, BLUE, WHITE]]))


def test_a_bad_image_between_good_ones(gate: httpx.Client) -> None:
    """Red, text, half a picture, blue: the outer two as if alone."""
    half = encode(noise(300, 300), "BMP")[:100_000]
    red, text, cut, blue = classify(gate, encode(solid(RED)), b"words", half, encode(solid(BLUE))).json()["results"]
    assert (means(red), means(blue)) == ([RED] * 4, [BLUE] * 4)
    assert (text["error"]["code"], cut["error"]["code"]) == ("unsupported_image", "corrupt_image")


def test_a_costly_picture_holds_up_nobody(gate: httpx.Client) -> None:
    """While one client's picture of 36 megapixels is decoded, others are answered; then so is that client."""
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(classify, gate, heavy(6000))
        while metric(gate, "tidegate_in_flight_images") == 0:
            assert not slow.done()
        for _ in range(5):
            assert colours(classify(gate, encode(solid(RED), "JPEG", quality=100)))[0][0] == pytest.approx(RED, abs=2)
        assert not slow.done()
        assert slow.result().status_code == 200


def test_padding_is_not_seen(gate: httpx.Client) -> None:
    """A black BMP that ends in zeros, beside a larger file, is black."""
    black = encode(solid((0, 0, 0)), "BMP")
    answer = classify(gate, black, encode(noise(60, 60), "BMP"))
    assert colours(answer)[0] == [(0, 0, 0)] * 4


def test_orientation_and_alpha_reach_the_model(gate: httpx.Client) -> None:
    """EXIF turns the picture, transparency shows white: the decoder's rules hold on the whole way."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encode(quadrants(RED, GREEN, BLUE, WHITE), exif=exif)
    clear = encode(Image.new("RGBA", (32, 32), (255, 0, 0, 0)))
    assert colours(classify(gate, turned, clear)) == [[BLUE, RED, WHITE, GREEN], [WHITE] * 4]


def test_nan_is_an_error_and_not_a_label(gate: httpx.Client) -> None:
    """A model that answers NaN: 502, and the next request is fine."""
    answer = classify(gate, encode(solid(NAN)))
    assert (answer.status_code, answer.json()["code"]) == (502, "bad_upstream_response")
    assert colours(classify(gate, encode(solid(RED)))) == [[RED] * 4]


def test_nan_costs_no_neighbour(gate: httpx.Client) -> None:
    """In one batch with pictures that are classified, only the one that gives NaN has no answer."""
    red, broken, blue = classify(gate, *(encode(solid(c)) for c in (RED, NAN, BLUE))).json()["results"]
    assert (means(red), means(blue)) == ([RED] * 4, [BLUE] * 4)
    assert broken["error"]["code"] == "bad_upstream_response"


def test_a_slow_model_and_a_short_deadline(gate: httpx.Client) -> None:
    """The answer comes at the deadline, not when the model is done; then all is well again."""
    slow = encode(solid((SLEEP, SLEEP, 100)))
    start = time.monotonic()
    answer = classify(gate, slow, headers={"x-request-timeout": "0.3"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    assert time.monotonic() - start < 0.95  # the model sleeps for a second
    assert colours(classify(gate, encode(solid(RED)))) == [[RED] * 4]


def test_models_are_listed_and_their_steps_are_not(gate: httpx.Client) -> None:
    """Discovery finds every model with a task, of whatever kind, and nothing that is only a part of one."""
    tasks = {model["id"]: model["task"] for model in gate.get("/v1/models").json()["data"]}
    if sys.version_info < (3, 11):  # there is no open_nsfw for it
        tasks.setdefault("open_nsfw", "classify")
    assert tasks == {
        "embedding_ensemble": "embed",
        "ensemble_model": "classify",
        "open_nsfw": "classify",
        "probe_ensemble": "classify",
        "text_classifier": "text_classify",
        "text_embedder": "text_embed",
    }
    assert gate.get("/v1/models/probe_ensemble").json()["classes"] == 12
