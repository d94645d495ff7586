"""Precision for TensorRT: it lives in the ONNX graph, where NVIDIA ModelOpt puts it, and is checked before a GPU works.

ModelOpt pins an old onnx and onnxruntime, so it runs as a program of its own in an environment of its own:

    python -m venv modelopt && modelopt/bin/pip install -r build_engines/targets/modelopt-requirements.txt
    export TIDEGATE_MODELOPT_PYTHON=$PWD/modelopt/bin/python
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from build_engines.errors import TargetError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ENVIRONMENT = "TIDEGATE_MODELOPT_PYTHON"
PROGRAM = Path(__file__).with_name("modelopt_program.py")

# Mean cosine of a picture's answers before and after. Seen on EfficientNet-Lite0: FP16 0.99999, INT8 0.998; the
# same INT8 file computed wrongly (products that overflow 16 bits) 0.7 and below. How good the engine is, the gate says.
ALIKE: Mapping[str, float] = {"fp16": 0.99, "int8": 0.9}

# Unoptimised, as the check must be, INT8 takes a quarter of a second a picture.
_CHECKED = 16


def find_python(given: Path | None = None) -> Path:
    """The interpreter that has ModelOpt: the one given, else the environment's; `TargetError` says how to get one."""
    path = given or Path(os.environ.get(ENVIRONMENT, ""))
    if not path.is_file():
        found = f"{path} is no file" if str(path) != "." else f"{ENVIRONMENT} is not set"
        raise TargetError(
            f"FP16 and INT8 need ModelOpt in an environment of its own ({found}): install "
            f"{PROGRAM.parent.name}/modelopt-requirements.txt into one and set {ENVIRONMENT} to its python."
        )
    return path


def versions(python: Path) -> Mapping[str, str]:
    """The versions of ModelOpt and of what it stands on. Quick: nothing of them is imported."""
    found: Mapping[str, str | None] = json.loads(_run(python, "--versions"))
    if found.get("nvidia-modelopt") is None:
        raise TargetError(f"{python} has no ModelOpt: install modelopt-requirements.txt into its environment.")
    return {package: version for package, version in found.items() if version}


def convert(python: Path, precision: str, graph: bytes, pixels: npt.NDArray[np.uint8]) -> bytes:
    """The ONNX `graph` in "fp16" or "int8", by pictures UINT8 [n, size, size, 3]; input and output stay as they are.

    Raises `TargetError` when ModelOpt fails, or when what it made computes something else.
    """
    import numpy as np

    if precision == "int8" and not len(pixels):
        raise TargetError("INT8 needs pictures to calibrate with: name a folder with --calibration.")
    with tempfile.TemporaryDirectory(prefix="tidegate-modelopt-") as name:
        folder = Path(name)
        (folder / "graph.onnx").write_bytes(graph)
        np.save(folder / "pixels.npy", pixels)
        arguments = [str(folder / file) for file in ("graph.onnx", "pixels.npy", "converted.onnx")]
        _run(python, precision, *arguments, folder=folder)
        try:
            converted = (folder / "converted.onnx").read_bytes()
        except OSError as error:
            raise TargetError("ModelOpt ended without an error and without a graph.") from error
    check_conversion(graph, converted, pixels, precision)
    return converted


def check_conversion(graph: bytes, converted: bytes, pixels: npt.NDArray[np.uint8], precision: str) -> None:
    """Compares a converted graph with its FP32 original on pictures; `TargetError` when it computes something else.

    Both are computed as they are written, by onnxruntime with every optimisation off, which agrees with ONNX's own
    reference evaluator. The fused INT8 kernels of onnxruntime get such files wrong everywhere, those of OpenVINO on
    processors without VNNI, whose products of 8 bits overflow: neither says anything about the file.
    """
    import numpy as np

    sample = pixels[:_CHECKED]
    before, after = _literally(graph, sample), _literally(converted, sample)
    if before.shape != after.shape or before.dtype != after.dtype:
        raise TargetError(
            f"ModelOpt changed the output from {before.dtype} {before.shape} to {after.dtype} {after.shape}."
        )
    if not np.isfinite(after).all():
        raise TargetError(f"The {precision.upper()} graph gives values that are not finite: its range is too small.")
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    alike = float(((before * after).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)).mean())
    if alike < ALIKE[precision]:
        raise TargetError(
            f"The {precision.upper()} graph computes something else than the FP32 one (cosine {alike:.3f}, at least "
            f"{ALIKE[precision]} is needed): this network does not go into {precision.upper()} as it is."
        )


def patterns(size: int) -> npt.NDArray[np.uint8]:
    """Eight smooth pictures over the whole range, for FP16 without photos. UINT8 [8, size, size, 3], always the same.

    FP16 needs to know only how large values get, and has a margin of a hundred. INT8 is never built with them.
    """
    import numpy as np

    ramp = np.linspace(0, 1, size)
    across, down = np.meshgrid(ramp, ramp)
    waves = [np.sin(np.pi * (k + 1) * (across * (k % 3) + down)) / 2 + 0.5 for k in range(8)]
    pictures = [np.stack([wave, across, down], axis=-1) for wave in waves]
    pixels: npt.NDArray[np.uint8] = (np.stack(pictures) * 255).astype(np.uint8)
    return pixels


def _literally(graph: bytes, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what goes wrong is raised, too
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        answers = [session.run(None, {name: pixels[at : at + 1]})[0] for at in range(len(pixels))]
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise TargetError(f"The converted graph does not run ({error}).") from error
    return np.concatenate(answers)


def _run(python: Path, *arguments: str, folder: Path | None = None) -> str:
    """What the program printed; `TargetError` with its last words when it failed."""
    try:
        done = subprocess.run(
            [str(python), str(PROGRAM), *arguments], capture_output=True, text=True, check=False, cwd=folder
        )
    except OSError as error:
        raise TargetError(f"{python} does not start ({error.strerror}).") from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise TargetError(f"ModelOpt failed ({words}).")
    return done.stdout
