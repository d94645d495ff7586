"""TensorRT: a plan for one GPU type and one TensorRT version, for Triton's "tensorrt_plan".

Right from TensorRT 10.12 to 11: networks are strongly typed, so the precision stands in the ONNX graph
(`modelopt.py` puts it there) and no flag of the builder can change it. What the layers of the finished plan really
run in is read back from the plan and compared with what was asked.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.configs import Serving
from build_engines.errors import TargetError
from build_engines.sources import INPUT, OUTPUTS
from build_engines.targets import Calibration, Engine, modelopt
from build_engines.targets.gpu import CONTAINER, Gpu, Stream, find_gpu, needing_tensorrt
from build_engines.targets.tensorrt_layers import layer_precisions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from build_engines.sources import Network
    from build_engines.stages import Stages
    from build_engines.targets import Answers, Images

MAX_BATCH = 256
"""The most that the gateway sends in one request."""

SERVING = Serving(
    platform='platform: "tensorrt_plan"',
    variant="",
    max_batch=MAX_BATCH,
    instances=2,
    delay_us=1000,
    why={
        "head": "The classifier on a GPU: a TensorRT plan for UINT8 pixels, normalisation and softmax inside.\n"
        "On the CPU: configs/cpu.pbtxt (tritonserver --model-config-name=cpu).",
        "instance_group": "Two, so that one copies while the other computes.",
        "model_warmup": "TensorRT loads its kernels with the first inference; "
        "Triton does this one before it says that it is ready.",
    },
    warmup=True,
)

_EMBED_HEAD = "The network on a GPU: a TensorRT plan for UINT8 pixels, normalisation inside; features come out."

# Of the free memory, for what kernels need while they are tried: the rest is for the network and for a neighbour.
_WORKSPACE_SHARE = 0.5
_WORKSPACE_MOST = 8 << 30

# ModelOpt leaves in FP32 what FP16 could not hold, and the first and last layers out of INT8: not half of a network.
_SHARE = 0.5

_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class TensorRT:
    """The target. Pictures to calibrate with, a few hundred, are needed for "int8" and welcome for "fp16"."""

    usual_batch: int = 64
    """The batch that kernels are chosen for; every batch from 1 to `MAX_BATCH` runs."""
    modelopt_python: Path | None = None
    """The interpreter that has ModelOpt; None for the one that TIDEGATE_MODELOPT_PYTHON names."""
    calibrates_on: str = "pixels"
    variant: str = SERVING.variant

    @property
    def name(self) -> str:
        return "tensorrt"

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("fp16", "int8", "fp32")

    def identity(self, precision: str) -> Mapping[str, Any]:
        """Versions of TensorRT and ModelOpt, the GPU's type, and the profile: a plan runs with no other."""
        if precision not in self.precisions:
            raise TargetError(f"TensorRT engines are built in {', '.join(self.precisions)}, not in {precision}.")
        trt = _tensorrt()
        gpu = find_gpu()
        found: dict[str, Any] = {
            "name": self.name,
            "tensorrt": trt.__version__,
            "gpu": gpu.name,
            "compute_capability": gpu.capability,
            "profile": [1, self.usual_batch, MAX_BATCH],
        }
        if precision != "fp32":
            found["modelopt"] = dict(modelopt.versions(modelopt.find_python(self.modelopt_python)))
        return found

    def build(self, network: Network, precision: str, calibration: Calibration, stages: Stages) -> Engine:
        """Converts, checks the conversion, builds, and reads back what the layers run in."""
        identity = self.identity(precision)
        gpu = find_gpu()
        graph = self._typed(network.graph, precision, identity, calibration.pixels, stages)
        key = {"graph": hashlib.sha256(graph).hexdigest(), **identity}
        plan = stages.result(
            f"{precision}.plan",
            key,
            f"building a TensorRT {identity['tensorrt']} engine for {gpu.name}: this takes minutes",
            lambda: self._plan(graph, gpu, stages),
        )
        session = Session(plan, OUTPUTS[network.task], image_shape(graph), network.width)
        layers = session.layers()
        check_layers(layers, precision)
        return Engine(
            files={"model.plan": plan},
            serving=serving(network.task),
            layers=layers,
            device=f"{gpu.name} (compute capability {gpu.capability})",
            run=session,
        )

    def _typed(
        self, graph: bytes, precision: str, identity: Mapping[str, Any], pixels: Images | None, stages: Stages
    ) -> bytes:
        """The graph with `precision` inside."""
        if precision == "fp32":
            return graph
        if pixels is None or not len(pixels):
            if precision == "int8":
                raise TargetError("INT8 needs pictures to calibrate with: name a folder with --calibration.")
            pixels = modelopt.patterns(image_shape(graph)[0])
        python = modelopt.find_python(self.modelopt_python)
        content = hashlib.sha256(pixels.tobytes()).hexdigest()
        key = {"graph": hashlib.sha256(graph).hexdigest(), "pixels": content, "versions": identity["modelopt"]}
        return stages.result(
            f"{precision}.onnx",
            key,
            f"converting to {precision.upper()} with ModelOpt, by {len(pixels)} pictures",
            lambda: modelopt.convert(python, precision, graph, pixels),
        )

    def _plan(self, graph: bytes, gpu: Gpu, stages: Stages) -> bytes:
        """The builder's sequence, which is the same in TensorRT 10.12 and 11."""
        trt = _tensorrt()
        logger = _logger()
        logger.lines.clear()
        try:
            builder = trt.Builder(logger)
        except TypeError as error:  # what the bindings make of a null pointer
            raise TargetError(f"TensorRT does not start ({logger.last() or error}): {CONTAINER}.") from error
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parse(trt, graph, network, logger)
        config = builder.create_builder_config()
        workspace = min(int(gpu.free * _WORKSPACE_SHARE), _WORKSPACE_MOST)
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
        # "fp32" means it: by default products would run in TF32, which has the 10 bits of FP16.
        config.clear_flag(trt.BuilderFlag.TF32)
        # So that the inspector tells each layer's precision; it costs a few kilobytes.
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        profile = builder.create_optimization_profile()
        shape = image_shape(graph)
        profile.set_shape(INPUT, (1, *shape), (self.usual_batch, *shape), (MAX_BATCH, *shape))
        if config.add_optimization_profile(profile) < 0:
            raise TargetError(f"TensorRT does not take batches of 1 to {MAX_BATCH} ({logger.last()}).")
        config.progress_monitor = _progress(stages.say)
        with _timing_cache(config, stages.folder / _cache_name(gpu, trt.__version__)):
            plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise TargetError(f"TensorRT could not build the engine ({logger.last() or 'it does not say why'}).")
        return bytes(plan)


def serving(task: str) -> Serving:
    """How Triton is to run a plan for one task."""
    return SERVING if task == "classify" else replace(SERVING, why={**SERVING.why, "head": _EMBED_HEAD})


class Session:
    """A plan in memory, ready to answer: UINT8 [n, size, size, 3] → FP32 [n, width], for any n."""

    def __init__(self, plan: bytes, output: str, shape: tuple[int, int, int], width: int) -> None:
        trt = _tensorrt()
        logger = _logger()
        logger.lines.clear()
        self._trt, self._output, self._shape, self._width = trt, output, shape, width
        self._runtime = trt.Runtime(logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise TargetError(f"The plan cannot be loaded ({logger.last()}): it is for another TensorRT or GPU.")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise TargetError(f"The plan does not fit into the GPU's memory ({logger.last()}).")
        self._logger = logger
        self._stream = Stream()
        weakref.finalize(self, self._stream.close)
        height, wide, channels = shape
        self._pixels = self._stream.allocate(MAX_BATCH * height * wide * channels)
        self._answers = self._stream.allocate(MAX_BATCH * width * 4)
        for name, address in ((INPUT, self._pixels), (output, self._answers)):
            if not self._context.set_tensor_address(name, address):
                raise TargetError(f"The plan has no tensor {name} ({logger.last()}).")

    def layers(self) -> dict[str, int]:
        """Layers that compute, by their precision; `TargetError` when the inspector's words cannot be read."""
        inspector = self._engine.create_engine_inspector()
        information = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        try:
            return layer_precisions(information)
        except ValueError as error:
            raise TargetError(f"TensorRT's engine inspector cannot be understood: {error}.") from error

    def __call__(self, images: Images) -> Answers:
        import numpy as np

        answers = np.empty((len(images), self._width), np.float32)
        for start in range(0, len(images), MAX_BATCH):
            batch = np.ascontiguousarray(images[start : start + MAX_BATCH])
            if not self._context.set_input_shape(INPUT, (len(batch), *self._shape)):
                raise TargetError(f"The plan does not take a batch of {len(batch)} ({self._logger.last()}).")
            self._stream.upload(batch, self._pixels)
            if not self._context.execute_async_v3(self._stream.handle):
                raise TargetError(f"The plan does not run ({self._logger.last()}).")
            self._stream.download(self._answers, answers[start : start + len(batch)])
        return answers


def check_layers(layers: Mapping[str, int], precision: str) -> None:
    """Raises `TargetError` unless at least half of the layers that compute run in the precision that was asked for."""
    total = sum(layers.values())
    if not total:
        raise TargetError("TensorRT's engine inspector names no layer that computes: the precision is not known.")
    if layers.get(precision, 0) < _SHARE * total:
        found = ", ".join(f"{count} in {name}" for name, count in sorted(layers.items()))
        raise TargetError(f"{precision} was asked for, and of {total} layers that compute, {found} run.")


def parse(trt: Any, graph: bytes, network: Any, logger: Any) -> None:
    """Reads an ONNX graph into a TensorRT network; `TargetError` has everything that the parser did not like."""
    parser = trt.OnnxParser(network, logger)
    with tempfile.TemporaryDirectory(prefix="tidegate-tensorrt-") as folder:
        path = Path(folder, "graph.onnx")
        path.write_bytes(graph)
        if parser.parse_from_file(str(path)):
            return
    errors = [str(parser.get_error(index)).strip() for index in range(parser.num_errors)]
    raise TargetError(f"TensorRT does not take the graph: {'; '.join(errors) or logger.last() or 'no reason given'}.")


def image_shape(graph: bytes) -> tuple[int, int, int]:
    """Height, width and channels of a graph's input."""
    import onnx

    _, height, width, channels = onnx.load_model_from_string(graph).graph.input[0].type.tensor_type.shape.dim
    return height.dim_value, width.dim_value, channels.dim_value


def _tensorrt() -> Any:
    with needing_tensorrt():
        import tensorrt as trt
    return trt


@cache
def _logger() -> Any:
    """One for the process: TensorRT writes everything to the first that it was given."""
    trt = _tensorrt()
    base: Any = trt.ILogger

    class Log(base):  # type: ignore[misc]  # the package ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.lines: deque[str] = deque(maxlen=20)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.lines.append(message.strip())

        def last(self) -> str:
            """The last three errors."""
            return "; ".join(list(self.lines)[-3:])

    return Log()


def _progress(say: Callable[[str], object]) -> Any:
    """Says now and then how far the builder is."""
    trt = _tensorrt()
    base: Any = trt.IProgressMonitor

    class Progress(base):  # type: ignore[misc]  # the package ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.steps: dict[str, int] = {}
            self.said = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.steps[phase_name] = num_steps

        def phase_finish(self, phase_name: str) -> None:
            self.steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            now = time.monotonic()
            if now - self.said >= _PROGRESS_SECONDS:
                self.said = now
                say(f"TensorRT: {phase_name}, step {step + 1} of {self.steps.get(phase_name, 0)}")
            return True  # false would cancel the build

    return Progress()


@contextmanager
def _timing_cache(config: Any, path: Path) -> Iterator[None]:
    """Kernels that were timed before are not timed again: what the cache has grown to is kept in `path`."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    known = config.create_timing_cache(content)
    if known is None or not config.set_timing_cache(known, False):  # damaged, or another GPU's
        known = config.create_timing_cache(b"")
        config.set_timing_cache(known, False)
    yield
    grown = config.get_timing_cache()
    if grown is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}-{os.getpid()}")
        staged.write_bytes(bytes(grown.serialize()))
        staged.replace(path)


def _cache_name(gpu: Gpu, version: str) -> str:
    return f"timing-{re.sub(r'[^A-Za-z0-9]+', '-', gpu.name).lower()}-{version}.cache"
