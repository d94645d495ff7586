from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from build_engines.errors import TargetError
from build_engines.targets import modelopt
from tests.build_engines.targets.fakes import SIZE, graph

HERE = Path(sys.executable)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, SIZE, SIZE, 3), dtype=np.uint8)

# Stands for modelopt_program.py: the same arguments, and the graph comes back as it was.
COPY = """
import shutil, sys
precision, graph, pixels, converted = sys.argv[1:]
shutil.copy(graph, converted)
"""


def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """Runs `text` in place of the program."""
    path = tmp_path / "program.py"
    path.write_text(text)
    monkeypatch.setattr(modelopt, "PROGRAM", path)


def changed(kind: str) -> bytes:
    """The graph with one more node behind the mean."""
    model = onnx.load_model_from_string(graph())
    output = model.graph.output[0].name
    model.graph.node[-1].output[0] = "mean"
    model.graph.node.append(helper.make_node(kind, ["mean"], [output]))
    if kind == "Cast":
        model.graph.node[-1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT16))
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    content: bytes = model.SerializeToString()
    return content


def test_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is given, else the one that the environment names."""
    monkeypatch.setenv(modelopt.ENVIRONMENT, str(HERE))
    assert modelopt.find_python() == HERE
    assert modelopt.find_python(HERE) == HERE


@pytest.mark.parametrize("value", [None, "/nowhere/python"])
def test_no_interpreter(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the message says which variable to set, and what to install where."""
    if value is None:
        monkeypatch.delenv(modelopt.ENVIRONMENT, raising=False)
    else:
        monkeypatch.setenv(modelopt.ENVIRONMENT, value)
    with pytest.raises(TargetError, match=r"modelopt-requirements.txt .*TIDEGATE_MODELOPT_PYTHON"):
        modelopt.find_python()


def test_an_environment_without_modelopt() -> None:
    """The builder's own interpreter is not taken for one that has ModelOpt."""
    with pytest.raises(TargetError, match=r"has no ModelOpt"):
        modelopt.versions(HERE)


def test_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is installed, without what is not."""
    program(monkeypatch, tmp_path, """print('{"nvidia-modelopt": "0.47.0", "torch": null}')""")
    assert modelopt.versions(HERE) == {"nvidia-modelopt": "0.47.0"}


def test_conversion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The graph goes in and out as a file."""
    program(monkeypatch, tmp_path, COPY)
    assert modelopt.convert(HERE, "fp16", graph(), PIXELS) == graph()


def test_int8_without_pictures() -> None:
    """INT8 is never calibrated on nothing, which ModelOpt would fill up with noise."""
    with pytest.raises(TargetError, match=r"INT8 needs pictures"):
        modelopt.convert(HERE, "int8", graph(), PIXELS[:0])


def test_a_program_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its last words are the message."""
    program(monkeypatch, tmp_path, "import sys; print('much\\nmore'); sys.exit('ValueError: no Conv')")
    with pytest.raises(TargetError, match=r"ModelOpt failed \(ValueError: no Conv\)"):
        modelopt.convert(HERE, "int8", graph(), PIXELS)


def test_a_program_that_gives_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An exit status of 0 is not taken for a graph."""
    program(monkeypatch, tmp_path, "")
    with pytest.raises(TargetError, match=r"without a graph"):
        modelopt.convert(HERE, "int8", graph(), PIXELS)


@pytest.mark.parametrize(
    ("converted", "words"),
    [
        (changed("Neg"), r"computes something else .*cosine -"),
        (changed("Cast"), r"output from float32 .* to float16"),
        (changed("Log"), r"not finite"),
        (graph()[:40], r"does not run"),
    ],
    ids=["other values", "another type", "infinite values", "no graph"],
)
def test_a_graph_that_computes_something_else(converted: bytes, words: str) -> None:
    """A conversion that went wrong is found before any GPU works on it."""
    black = np.zeros((1, SIZE, SIZE, 3), np.uint8)
    with pytest.raises(TargetError, match=words):
        modelopt.check_conversion(graph(), converted, np.concatenate([PIXELS, black]), "int8")


def test_patterns() -> None:
    """Eight different pictures over the whole range, the same each time."""
    pictures = modelopt.patterns(16)
    assert pictures.shape == (8, 16, 16, 3)
    assert (pictures.min(), pictures.max()) == (0, 255)
    assert len({picture.tobytes() for picture in pictures}) == 8
    np.testing.assert_array_equal(pictures, modelopt.patterns(16))


def test_the_program_explains_itself() -> None:
    """Other arguments than its three forms end with its description, without ModelOpt being there."""
    done = subprocess.run(
        [str(HERE), str(modelopt.PROGRAM), "fp8", "graph.onnx"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "modelopt_program.py int8 GRAPH.onnx PIXELS.npy CONVERTED.onnx" in done.stderr


@pytest.mark.skipif(modelopt.ENVIRONMENT not in os.environ, reason=f"{modelopt.ENVIRONMENT} names no ModelOpt")
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_the_real_modelopt(precision: str, tiny: bytes) -> None:
    """A small network with convolutions goes into both precisions, keeps its input and output, and is checked."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 14, 14, 3), dtype=np.uint8)
    converted = onnx.load_model_from_string(modelopt.convert(modelopt.find_python(), precision, tiny, pixels))
    original = onnx.load_model_from_string(tiny)
    assert converted.graph.input[0].name == original.graph.input[0].name
    assert converted.graph.input[0].type == original.graph.input[0].type
    assert converted.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    kinds = {node.op_type for node in converted.graph.node}
    assert ("QuantizeLinear" in kinds) == (precision == "int8")
    assert any(weights.data_type == TensorProto.FLOAT16 for weights in converted.graph.initializer)
