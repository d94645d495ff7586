"""Texts: from the raw string to the label, over gRPC and through the gateway, beside a model that does nothing.

    python -m benchmarks.texts

Trains a classifier and features on the news that lie in ../shared, else on the sample headlines, starts a Triton and a
gateway, and asks with one client, which waits for each answer. The models take turns, round after round; figures are
medians over the rounds. Then many clients ask one instance of the classifier, and two.

`nothing` is a Python model with the same tensors that answers zeros; `nothing, in two steps` an ensemble of two of
them: what a vectoriser and a classifier as two models would cost at the least (docs/adr/0014-texts.md).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client

from benchmarks.load import closed_loop, post
from benchmarks.stacks import running
from build_engines.text import TextOrder, build_text
from build_engines.text.build import SAMPLE, SAMPLE_HELD_OUT, SAMPLES
from gateway.triton.local import LocalTriton, Ports, free_ports

NEWS = Path(__file__).parents[2] / "shared" / "data" / "news"

_NOTHING = """\
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(len(pb_utils.get_input_tensor_by_name(r, "TEXT").as_numpy())) for r in requests]

    def answer(self, texts):
        outputs = {"CLASSIFICATION": np.zeros((texts, 4), np.float32), "KNOWN_WORDS": np.zeros((texts, 1), np.float32)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, rows) for name, rows in outputs.items()])
"""
_TENSORS = """\
max_batch_size: 256
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "CLASSIFICATION" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "KNOWN_WORDS" data_type: TYPE_FP32 dims: [ 1 ] }
]
"""
_ONE = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\ndynamic_batching { }\n'
_TWO_STEPS = """\
name: "nothing_in_two_steps"
platform: "ensemble"
%s
ensemble_scheduling {
  step [
    {
      model_name: "nothing"
      model_version: -1
      input_map { key: "TEXT" value: "TEXT" }
      output_map { key: "CLASSIFICATION" value: "between" }
    },
    {
      model_name: "again"
      model_version: -1
      input_map { key: "TEXT" value: "between" }
      output_map { key: "CLASSIFICATION" value: "CLASSIFICATION" }
      output_map { key: "KNOWN_WORDS" value: "KNOWN_WORDS" }
    }
  ]
}
"""


def main() -> None:
    """Measures everything and prints tables for a Markdown page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="of each model in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=16, help="of the comparison of instances")
    options = parser.parse_args()
    folder, names = (NEWS, ("train.csv", "valid.csv")) if NEWS.is_dir() else (SAMPLES, (SAMPLE, SAMPLE_HELD_OUT))
    train, valid = (str(folder / name) for name in names)
    with open(valid, newline="", encoding="utf-8") as file:
        texts = [row["title"] for row in csv.DictReader(file)]
    with ExitStack() as stack:
        repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-texts-")))
        for task in ("text_classify", "text_embed"):
            build_text(TextOrder(train=train, valid=valid, task=task, repository=repository))
        _add_nothing(repository)
        _add_twice(repository)
        http, grpc, metrics = free_ports(3)
        triton = LocalTriton([repository], ports=Ports(http, grpc, metrics), log_file=repository / "triton.log")
        stack.enter_context(triton)
        triton.wait_ready()
        client = stack.enter_context(grpc_client.InferenceServerClient(triton.url))
        (port,) = free_ports(1)
        ask = {
            "nothing": lambda i: _infer(client, "nothing", texts[i]),
            "nothing, in two steps": lambda i: _infer(client, "nothing_in_two_steps", texts[i]),
            "text_classifier": lambda i: _infer(client, "text_classifier", texts[i]),
            "text_embedder": lambda i: _infer(client, "text_embedder", texts[i]),
        }
        env = {**os.environ, "TIDEGATE_TRITON_URL": triton.url, "TIDEGATE_PORT": str(port)}
        command = [sys.executable, "-m", "gateway.cli", "serve"]
        stack.enter_context(running("gateway", "", "/v1/models/text_classifier", port, command, env))
        _one_client(ask, port, texts, options.requests, options.rounds)
        _instances(port, texts, options.clients, options.rounds)


def _one_client(
    ask: dict[str, Callable[[int], object]], port: int, texts: Sequence[str], requests: int, rounds: int
) -> None:
    over_http = [_post(text, "text_classifier") for text in texts]
    medians: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, infer in ask.items():
            times = []
            for i in range(requests):
                start = time.perf_counter()
                infer(i % len(texts))
                times.append(time.perf_counter() - start)
            medians.setdefault(f"{name}, gRPC", []).append(statistics.median(times))
        load = asyncio.run(closed_loop(port, over_http, 1, requests))
        assert load.failures == 0
        medians.setdefault("text_classifier, HTTP through the gateway", []).append(statistics.median(load.latencies))
    base = statistics.median(medians["nothing, gRPC"])
    print("\n| one client | median ms | of `nothing` |\n| --- | --- | --- |")
    for name, times in medians.items():
        median = statistics.median(times)
        print(f"| {name} | {1000 * median:.2f} | {median / base:.2f} × |")


def _instances(port: int, texts: Sequence[str], clients: int, rounds: int) -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    for many in (1, 32):
        several = [[texts[(i + k) % len(texts)] for k in range(many)] for i in range(200)]
        for _ in range(rounds):
            for model in ("text_classifier", "twice"):
                requests = [_post(part, model) for part in several]
                load = asyncio.run(closed_loop(port, requests, clients, 1000))
                assert load.failures == 0
                rates.setdefault((model, many), []).append(1000 * many / load.seconds)
    print(f"\n| {clients} clients through the gateway | 1 text a request | 32 texts a request |\n| --- | --- | --- |")
    for model, name in (("text_classifier", "one instance"), ("twice", "two instances")):
        one, more = (statistics.median(rates[model, many]) for many in (1, 32))
        print(f"| {name} | {one:,.0f} texts/s | {more:,.0f} texts/s |")


def _infer(client: grpc_client.InferenceServerClient, model: str, text: str) -> object:
    given = grpc_client.InferInput("TEXT", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()]], object))
    answer = client.infer(model, [given])
    return answer.as_numpy("KNOWN_WORDS")


def _post(texts: str | list[str], model: str) -> bytes:
    body = {"texts": [texts] if isinstance(texts, str) else texts, "top_k": 1, "model": model}
    return post("/v1/text/classify", json.dumps(body).encode(), "application/json")


def _add_nothing(repository: Path) -> None:
    """`nothing`, and an ensemble of it and another."""
    floats = _TENSORS.replace("TYPE_STRING dims: [ 1 ]", "TYPE_FP32 dims: [ 4 ]")
    for name, tensors in (("nothing", _TENSORS), ("again", floats)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_NOTHING)
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{tensors}{_ONE}')
    (repository / "nothing_in_two_steps" / "1").mkdir(parents=True)
    (repository / "nothing_in_two_steps" / "config.pbtxt").write_text(_TWO_STEPS % _TENSORS)


def _add_twice(repository: Path) -> None:
    """The classifier in two instances."""
    shutil.copytree(repository / "text_classifier", repository / "twice")
    config = repository / "twice" / "config.pbtxt"
    text = config.read_text().replace('name: "text_classifier"', 'name: "twice"').replace("count: 1", "count: 2")
    config.write_text(text)


if __name__ == "__main__":
    main()
