"""ONNX on the CPU, in Triton's Python backend: by OpenVINO or by onnxruntime."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.configs import Serving
from build_engines.errors import GraphError, TargetError
from build_engines.targets import Calibration, Engine

if TYPE_CHECKING:
    from build_engines.sources import Network
    from build_engines.stages import Stages

_SERVING = Path(__file__).parents[1] / "serving"

# The cost of an image does not fall with the size of its batch (docs/adr/0002-cpu-runtime.md); a larger batch
# would only make the others wait longer.
MAX_BATCH = 32
VARIANT = "cpu"


@dataclass(frozen=True)
class OnnxOnCpu:
    """A target that runs `model.onnx` with `serving/{name}_engine.py`."""

    name: str
    package: str
    precisions: tuple[str, ...]
    calibrates_on: str = "ranges"
    variant: str = VARIANT

    def identity(self, precision: str) -> Mapping[str, Any]:
        """The runtime's version; the file itself runs on every processor. See `Target`."""
        try:
            version = metadata.version(self.package)
        except metadata.PackageNotFoundError as error:
            raise TargetError(f"The package {self.package} is not installed: pip install 'tidegate[local]'.") from error
        if precision == "bf16" and not _has_bf16():
            raise TargetError("This processor has no bfloat16: build for fp32 or int8 here.")
        return {self.package: version}

    def build(self, network: Network, precision: str, calibration: Calibration, stages: Stages) -> Engine:
        """See `Target`; the graph itself, or quantised with the ranges."""
        content = network.graph
        if precision == "int8":
            from build_engines.calibration import quantise

            assert calibration.ranges is not None
            content = quantise(network.graph, calibration.ranges)
        files = {
            "model.onnx": content,
            "model.py": (_SERVING / "model.py").read_bytes(),
            "engine.py": (_SERVING / f"{self.name}_engine.py").read_bytes(),
        }
        cores = len(os.sched_getaffinity(0))
        try:
            with tempfile.TemporaryDirectory(prefix="tidegate-engine-") as folder:
                path = Path(folder, "model.onnx")
                path.write_bytes(content)
                module = import_module(f"build_engines.serving.{self.name}_engine")
                engine = module.Engine(path, cores, precision)
                layers = engine.layers()
        except Exception as error:  # the runtimes' own errors share no base but this
            raise GraphError(f"The model does not run in {self.name} ({error}).") from error
        return Engine(files, _serving(self.name, precision), layers, _processor(), engine)


def _serving(runtime: str, precision: str) -> Serving:
    return Serving(
        platform='backend: "python"',
        variant=VARIANT,
        max_batch=MAX_BATCH,
        instances=2,
        delay_us=0,
        why={
            "head": f"The network on the CPU: model.onnx in {_TITLES[runtime]}, in Triton's Python backend (model.py).",
            "instance_group": (
                "Two that take turns on every core that the server may use: while one hands its answers over, the "
                'other\ncomputes. Fewer threads: the parameter "threads".'
            ),
            "dynamic_batching": (
                "No delay: while one batch is computed, the next one gathers. Waiting for more would gain nothing, "
                "because\nthe cost of an image does not fall with the size of its batch (docs/adr/0002-cpu-runtime.md)."
            ),
        },
        parameters={"precision": precision},
    )


def _has_bf16() -> bool:
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _processor() -> str:
    """The processor's name and the instructions that decide how fast INT8 and BF16 are."""
    name, flags = platform.machine(), ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in lines.items()}
        name, flags = fields.get("model name", name), fields.get("flags", "")
    known = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    has = [flag for flag in known if flag in flags.split()]
    return f"{name}, {len(os.sched_getaffinity(0))} cores" + (f" ({', '.join(has)})" if has else "")


_TITLES = {"openvino": "OpenVINO", "onnxruntime": "onnxruntime"}

OPENVINO = OnnxOnCpu("openvino", "openvino", ("fp32", "int8", "bf16"))
ONNXRUNTIME = OnnxOnCpu("onnxruntime", "onnxruntime", ("fp32", "int8"))
