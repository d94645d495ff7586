"""Puts a precision into an ONNX file with NVIDIA ModelOpt. A program of its own, because ModelOpt pins old packages.

    python modelopt_program.py --versions
    python modelopt_program.py fp16 GRAPH.onnx PIXELS.npy CONVERTED.onnx
    python modelopt_program.py int8 GRAPH.onnx PIXELS.npy CONVERTED.onnx

The interpreter is that of an environment made from `modelopt-requirements.txt`; nothing else of this project is
imported. PIXELS.npy holds UINT8 [n, size, size, 3], real pictures as the model sees them: ModelOpt by itself would
take noise, and noise says nothing about how large values get. Input, output and the free batch stay as they were.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

# Python looks for imports beside a program first, and beside this one lie a modelopt.py and a tensorrt.py.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

PACKAGES = ("nvidia-modelopt", "onnx", "onnxruntime-gpu", "torch")

# AutoCast runs the graph once a picture and keeps the values of every node: 0.1 GB a picture for a ResNet-50.
AUTOCAST_PICTURES = 8


def main(arguments: list[str]) -> int:
    """Runs one conversion; 0, or 2 for arguments that are none of the three forms."""
    if arguments == ["--versions"]:
        sys.stdout.write(json.dumps({package: _version(package) for package in PACKAGES}) + "\n")
        return 0
    if len(arguments) != 4 or arguments[0] not in ("fp16", "int8"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    convert = {"fp16": to_fp16, "int8": to_int8}[arguments[0]]
    convert(*(Path(argument) for argument in arguments[1:]))
    return 0


def to_fp16(graph: Path, pixels: Path, converted: Path) -> None:
    """AutoCast: FP16 wherever the pictures show that values stay far below what FP16 can hold."""
    import numpy as np
    import onnx
    from modelopt.onnx.autocast import convert_to_mixed_precision

    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder, "samples.npz")
        np.savez(samples, **{_input(graph): np.load(pixels)[:AUTOCAST_PICTURES]})
        model = convert_to_mixed_precision(str(graph), keep_io_types=True, calibration_data=str(samples))
    onnx.save(model, str(converted))


def to_int8(graph: Path, pixels: Path, converted: Path) -> None:
    """Quantizes convolutions and matrix products by the pictures; what stays floating point becomes FP16."""
    import numpy as np
    from modelopt.onnx.quantization import quantize

    images = np.load(pixels)
    if not len(images):
        raise SystemExit("INT8 needs pictures to calibrate with.")
    quantize(
        str(graph),
        quantize_mode="int8",
        calibration_method="entropy",
        calibration_data={_input(graph): images},
        calibration_eps=["cpu"],
        high_precision_dtype="fp16",
        output_path=str(converted),
    )


def _input(graph: Path) -> str:
    import onnx

    return str(onnx.load(str(graph), load_external_data=False).graph.input[0].name)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
