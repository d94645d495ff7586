"""Which runtime serves the classifier on the CPU, and how: images/s and CPU time by size of the batch.

    python benchmarks/cpu_runtime.py [--model model.onnx]

Ways of using the cores, for onnxruntime and for OpenVINO, both in FP32:

  one session     the whole batch through one session, as many threads as cores
  chunks          the batch cut into as many equal chunks as cores, each through one thread
  images          one image at a time through each core
  served          what build_engines/serving/openvino_engine.py does

Each figure is the best of several rounds, in which the ways take turns, because a shared machine only ever
slows a round down. The result decided docs/adr/0002-cpu-runtime.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import openvino

from build_engines.build import DEFAULT_SOURCE
from build_engines.preprocessing import Preprocessing
from build_engines.serving.openvino_engine import Engine
from build_engines.sources import INPUT, find_source

Images = npt.NDArray[np.uint8]
Probabilities = npt.NDArray[np.float32]
Classify = Callable[[Images], Probabilities]

BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Figure:
    """What one way took for one size of batch, per image."""

    seconds: float
    cpu_seconds: float

    def best(self, other: Figure) -> Figure:
        """The smaller of each."""
        return Figure(min(self.seconds, other.seconds), min(self.cpu_seconds, other.cpu_seconds))


def main() -> None:
    """Measures every way and prints a table for a Markdown page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an ONNX classifier in FP32 (default: the default model)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds for each figure (default: %(default)s)")
    parser.add_argument("--images", type=int, default=32, help="images a round, at least (default: %(default)s)")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        ways = contenders(options.model or default_model(Path(folder)), cores)
    images = np.random.default_rng(0).integers(0, 256, (max(BATCHES), 224, 224, 3), dtype=np.uint8)
    print(
        f"{cores} cores ({platform.processor() or platform.machine()}), "
        f"onnxruntime {onnxruntime.__version__}, OpenVINO {openvino.__version__}\n"
    )
    print("Images/s (CPU-ms an image), by images in a batch:\n")
    print("| way |", " | ".join(map(str, BATCHES)), "| largest difference, alone or batched |")
    print("| --- |", " --- |" * (len(BATCHES) + 1), sep="")
    figures = {batch: measure(ways, images[:batch], options.rounds, options.images) for batch in BATCHES}
    for name, classify in ways.items():
        cells = [f"{1 / f[name].seconds:.0f} ({f[name].cpu_seconds * 1e3:.1f})" for f in figures.values()]
        print(f"| {name} |", " | ".join(cells), f"| {largest_difference(classify, images):.0e} |")


def default_model(folder: Path) -> Path:
    """The default model's graph in FP32, as a file."""
    source = find_source(DEFAULT_SOURCE)
    recipe = source.preprocess()
    assert recipe is not None
    path = folder / "model.onnx"
    path.write_bytes(source.load(Preprocessing.of(recipe).normalisation).graph)
    return path


def contenders(model: Path, cores: int) -> Mapping[str, Classify]:
    """The ways, each ready to classify a batch."""
    pool = ThreadPoolExecutor(cores)

    def by_chunks(classify: Classify, chunks: int | None) -> Classify:
        """`classify` on parts of the batch, `cores` at once; None means parts of one image."""

        def all_parts(images: Images) -> Probabilities:
            parts = np.array_split(images, min(chunks or len(images), len(images)))
            return np.concatenate(list(pool.map(classify, parts)))

        return all_parts

    one_thread = onnxruntime_session(model, threads=1)
    streams = OpenVINORequests(model, streams=cores, threads=cores)
    return {
        "onnxruntime, one session": onnxruntime_session(model, threads=cores),
        "onnxruntime, chunks": by_chunks(one_thread, cores),
        "onnxruntime, images": by_chunks(one_thread, None),
        "OpenVINO, one session": OpenVINORequests(model, streams=1, threads=cores),
        "OpenVINO, chunks": by_chunks(streams, cores),
        "OpenVINO, images": by_chunks(OpenVINORequests(model, streams=cores, threads=cores, batch=1), None),
        "served": Engine(model, cores, "fp32"),
    }


def onnxruntime_session(model: Path, threads: int) -> Classify:
    """A session, which several threads may call at once."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait by spinning would take the cores from the preprocessor next door.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def classify(images: Images) -> Probabilities:
        probabilities: Probabilities = session.run(None, {INPUT: images})[0]
        return probabilities

    return classify


class OpenVINORequests:
    """A compiled model with a request for each stream, which as many threads may call at once."""

    def __init__(self, model: Path, streams: int, threads: int, batch: int | None = None) -> None:
        core = openvino.Core()
        network = core.read_model(model)
        if batch is not None:
            network.reshape([batch, 224, 224, 3])
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = core.compile_model(network, "CPU", settings)
        self._idle = [compiled.create_infer_request() for _ in range(streams)]

    def __call__(self, images: Images) -> Probabilities:
        request = self._idle.pop()
        request.infer({INPUT: openvino.Tensor(images, shared_memory=True)}, share_inputs=True)
        probabilities: Probabilities = request.get_output_tensor(0).data.copy()
        self._idle.append(request)
        return probabilities


def measure(ways: Mapping[str, Classify], images: Images, rounds: int, least: int) -> Mapping[str, Figure]:
    """The best figure of each way for this batch; the ways take turns."""
    repeats = max(1, least // len(images))
    figures: dict[str, Figure] = {}
    for classify in ways.values():
        classify(images)
    for _ in range(rounds):
        for name, classify in ways.items():
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                classify(images)
            count = repeats * len(images)
            figure = Figure((time.perf_counter() - start) / count, (time.process_time() - cpu) / count)
            figures[name] = figures.get(name, figure).best(figure)
    return figures


def largest_difference(classify: Classify, images: Images) -> float:
    """The largest difference of any probability between an image alone and in batches of every size."""
    alone = np.concatenate([classify(image[None]) for image in images])
    return max(float(np.abs(classify(images[:batch]) - alone[:batch]).max()) for batch in BATCHES)


if __name__ == "__main__":
    main()
