"""Whatever is asked together, in whatever order and form: every image has the answer that it has alone."""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.settings import Settings
from gateway.triton.local import LocalTriton
from tests.model_repository.picture_files import exif, png, scene
from tests.pictures import encode, quadrants
from tests.servers import running_gateway

EXAMPLES = int(os.environ.get("TIDEGATE_ANY_MIX", "40"))
MAX_FILE_BYTES = 200_000
SIZES = ((1, 1), (1, 40), (64, 64), (300, 200), (31, 17), (2, 300))
Outcome = tuple[object, ...]


@functools.cache
def pool() -> dict[str, bytes]:
    """Every kind of picture in some sizes, and everything that is none."""
    files: dict[str, bytes] = {}
    for i, (width, height) in enumerate(SIZES):
        picture, turn = scene(width, height, i), exif(1 + i)
        for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"):
            options: dict[str, Any] = {"exif": turn} if kind in ("JPEG", "PNG", "WEBP") else {}
            files[f"{kind} {width}x{height}"] = encode(picture, kind, **options)
        files[f"alpha {width}x{height}"] = encode(picture.convert("RGBA").rotate(9), "PNG")
        files[f"grey {width}x{height}"] = encode(picture.convert("L"), "JPEG", progressive=True)
        files[f"palette {width}x{height}"] = encode(picture.quantize(8), "PNG")
        files[f"CMYK {width}x{height}"] = encode(picture.convert("CMYK"), "JPEG")
    jpeg, bitmap = files["JPEG 300x200"], files["BMP 300x200"]
    checksum = bytearray(files["PNG 64x64"])
    checksum[-20] ^= 1
    huge = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    bad = {
        "empty": b"",
        "one byte": b"\xff",
        "text": b"no picture at all",
        "letters of a bitmap": b"BM is how this text begins, and it goes on for a while",
        "zeros": bytes(5000),
        "cut JPEG": jpeg[: len(jpeg) // 2],
        "JPEG without its end": jpeg[:-2],
        "cut bitmap": bitmap[: len(bitmap) // 2],
        "cut WebP": files["WEBP 300x200"][:-30],
        "wrong checksum": bytes(checksum),
        "too few rows": png(8, 8, 8, 0, bytes(9)),
        "hole": jpeg[: len(jpeg) // 2] + bytes(300) + jpeg[len(jpeg) // 2 + 300 :],
        "huge": png(1, 1, 8, 0, b"\0\0").replace(struct.pack(">II", 1, 1), huge[:8]),
        "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64),
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "large file": encode(quadrants((9, 9, 9), (0, 9, 0), (9, 0, 0), (0, 0, 9)), "BMP") + bytes(MAX_FILE_BYTES),
    }
    return {**files, **bad}


def outcome(result: dict[str, Any]) -> Outcome:
    if result["status"] == "error":
        return "error", result["error"]["code"]
    return "ok", *(p["probability"] for p in sorted(result["predictions"], key=lambda p: int(p["class_id"])))


def ask(client: httpx.Client, form: str, files: list[bytes]) -> list[Outcome]:
    """All files in one request of this form, or one after the other where it holds but one."""
    url = "/v1/classify?model=probe_ensemble&top_k=12"
    if form == "bare":
        kinds = {"content-type": "application/octet-stream"}
        answers = [client.post(url, content=file, headers=kinds) for file in files]
    elif form == "JSON":
        images = [{"data": base64.b64encode(file).decode()} for file in files]
        answers = [
            client.post(url, content=json.dumps({"images": images}), headers={"content-type": "application/json"})
        ]
    else:
        answers = [client.post(url, files=[("files", (f"{i}", io.BytesIO(file))) for i, file in enumerate(files)])]
    results: list[Outcome] = []
    for answer in answers:
        document = answer.json()
        if document.get("code") == "missing_image":  # how an empty bare body is answered
            results.append(("error", "empty_image"))
            continue
        assert (answer.status_code, document.get("code")) in ((200, None), (422, "no_usable_image"))
        results += [outcome(result) for result in document["results"]]
    return results


@pytest.fixture(scope="module")
def narrow_gate(triton: LocalTriton) -> Any:
    """A gateway with a cap on files that a test can reach, in front of the real Triton."""
    with running_gateway(Settings(triton_url=triton.url, max_file_bytes=MAX_FILE_BYTES)) as client:
        yield client


@pytest.fixture(scope="module")
def alone(narrow_gate: httpx.Client) -> dict[str, Outcome]:
    """What each file of the pool is answered when nothing else is asked."""
    return {name: ask(narrow_gate, "form", [file])[0] for name, file in pool().items()}


def test_the_pool_has_pictures_and_everything_else(alone: dict[str, Outcome]) -> None:
    """Every file is answered as it should be: each kind is taken in each size, each fault is named."""
    codes = {name: "ok" if answer[0] == "ok" else answer[1] for name, answer in alone.items()}
    assert all(code == "ok" for name, code in codes.items() if name[-1].isdigit()), codes
    assert {name: code for name, code in codes.items() if not name[-1].isdigit()} == {
        "empty": "empty_image",
        **dict.fromkeys(("one byte", "text", "letters of a bitmap", "zeros", "HEIC", "SVG"), "unsupported_image"),
        **dict.fromkeys(("cut JPEG", "JPEG without its end", "cut bitmap", "cut WebP"), "corrupt_image"),
        **dict.fromkeys(("wrong checksum", "too few rows", "hole"), "corrupt_image"),
        "huge": "image_too_large",
        "large file": "file_too_large",
    }


requests = st.tuples(
    st.sampled_from(("form", "JSON", "bare")), st.lists(st.sampled_from(sorted(pool())), min_size=1, max_size=9)
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TIDEGATE_ANY_MIX" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(mix=st.lists(requests, min_size=1, max_size=12), clients=st.integers(1, 6))
def test_company_changes_no_answer(
    narrow_gate: httpx.Client, alone: dict[str, Outcome], mix: list[tuple[str, list[str]]], clients: int
) -> None:
    """Any files in any order, spread over requests of any form by several clients at once: N exact answers for N."""
    with ThreadPoolExecutor(clients) as threads:
        answers = threads.map(lambda each: ask(narrow_gate, each[0], [pool()[name] for name in each[1]]), mix)
        for (form, names), found in zip(mix, answers, strict=True):
            assert found == [alone[name] for name in names], (form, names)


def test_everything_at_once_in_every_form(narrow_gate: httpx.Client, alone: dict[str, Outcome]) -> None:
    """The whole pool, shuffled, in each form by its own client at the same time."""
    names = sorted(pool())

    def shuffled(form: str) -> bool:
        order = random.Random(form).sample(names, len(names))
        return ask(narrow_gate, form, [pool()[name] for name in order]) == [alone[name] for name in order]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(shuffled, ("form", "JSON", "bare"))) == [True] * 3
