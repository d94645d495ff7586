"""The default model on real photos, through the gateway and by a program that calls Triton itself."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from gateway.triton.local import LocalTriton
from tests.pictures import encode, noise
from tests.servers import PHOTOS, ROOT, executions

SAMPLES = {"cat.jpg": "Egyptian cat", "coffee.jpg": "espresso", "rocket.jpg": "missile"}
labelled = pytest.mark.skipif(not PHOTOS.is_dir(), reason="the labelled photos are not on this machine")


def predictions(answer: httpx.Response) -> list[dict[str, float]]:
    assert answer.status_code == 200, answer.text
    return [{p["label"]: p["probability"] for p in r["predictions"]} for r in answer.json()["results"]]


def test_sample_photos(gate: httpx.Client) -> None:
    """What is on the picture is among the top five."""
    for name, label in SAMPLES.items():
        (found,) = predictions(gate.post("/v1/classify", content=(ROOT / "examples" / "photos" / name).read_bytes()))
        assert label in found


def test_one_of_64_and_64_of_one(gate: httpx.Client, triton: LocalTriton) -> None:
    """The same answers; Triton merged the 64 single requests into far fewer executions."""
    sources = [(ROOT / "examples" / "photos" / name).read_bytes() for name in SAMPLES]
    files = sources * 2 + [encode(noise(40 + i, 50), "JPEG") for i in range(58)]  # all of different lengths
    query = {"top_k": 1000}
    together = predictions(gate.post("/v1/classify", params=query, files=[("files", file) for file in files]))
    before = executions(triton.ports.metrics, "preprocessor"), executions(triton.ports.metrics, "classifier")

    def alone(file: bytes) -> dict[str, float]:
        return predictions(gate.post("/v1/classify", params=query, content=file))[0]

    with ThreadPoolExecutor(64) as pool:
        singles = list(pool.map(alone, files))
    for a, b in zip(together, singles, strict=True):
        assert a.keys() == b.keys()
        assert max(abs(a[label] - b[label]) for label in a) < 1e-3
    assert executions(triton.ports.metrics, "preprocessor") - before[0] < 48
    assert executions(triton.ports.metrics, "classifier") - before[1] < 48


@labelled
def test_accuracy(gate: httpx.Client) -> None:
    """At least 86 % of the labelled photos get their own label first."""
    with (PHOTOS / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = 0
    for start in range(0, len(rows), 50):
        chunk = rows[start : start + 50]
        files = [("files", (row["file"], (PHOTOS / row["file"]).read_bytes())) for row in chunk]
        results = gate.post("/v1/classify", params={"top_k": 1}, files=files).json()["results"]
        assert [r["filename"] for r in results] == [row["file"] for row in chunk]
        right += sum(
            r["predictions"][0]["class_id"] == int(row["class_id"]) for r, row in zip(results, chunk, strict=True)
        )
    assert right / len(rows) >= 0.86


def test_a_program_may_ask_triton_itself(triton: LocalTriton) -> None:
    """The ensemble's tensors are a contract of their own: padded files, true lengths, a status for each."""
    files = [(ROOT / "examples" / "photos" / "coffee.jpg").read_bytes(), b"no picture", b""]
    padded = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, file in zip(padded, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    raw = triton_grpc.InferInput("RAW_IMAGE", list(padded.shape), "UINT8")
    raw.set_data_from_numpy(padded)
    length = triton_grpc.InferInput("IMAGE_LENGTH", [len(files), 1], "INT32")
    length.set_data_from_numpy(np.array([[len(file)] for file in files], np.int32))
    with triton_grpc.InferenceServerClient(triton.url) as client:
        answer = client.infer("ensemble_model", [raw, length])
    assert answer.as_numpy("IMAGE_STATUS").tolist() == [[0], [2], [1]]
    assert answer.as_numpy("CLASSIFICATION").shape == (3, 1000)
    assert int(answer.as_numpy("CLASSIFICATION")[0].argmax()) == 967  # espresso


def test_labels_are_the_file_beside_the_classifier(gate: httpx.Client) -> None:
    """Line k from 0 names class k."""
    lines = Path(ROOT / "model_repository" / "classifier" / "labels.txt").read_text().splitlines()
    assert gate.get("/v1/models/ensemble_model").json()["labels"] == lines
