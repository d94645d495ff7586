from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from build_engines.errors import SourceError
from build_engines.preprocessing import Normalisation
from build_engines.sources import Network, Wish, find_source
from build_engines.sources.outputs import synthetic_pictures

NORMALISATION = Normalisation(size=8, color="BGR", mean=(104.0, 117.0, 123.0), std=(50.0, 60.0, 70.0))
WEIGHTS = np.random.default_rng(0).normal(0, 1, (5, 3)).astype(np.float32)

Node = tuple[str, list[str], list[str], dict[str, Any]]


def network(
    path: Path,
    tail: Sequence[Node] = (),
    *,
    sides: Sequence[Any] = ("N", 3, 8, 8),
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    constants: dict[str, npt.NDArray[Any]] | None = None,
    answer: Sequence[Any] = ("N", 5),
) -> Path:
    """Writes a file: the mean of each channel times WEIGHTS; `tail` goes from "logits" to "answer"."""
    axes = [2, 3] if sides[1] == 3 else [1, 2]
    dtypes: dict[int, Any] = {
        TensorProto.FLOAT: np.float32,
        TensorProto.FLOAT16: np.float16,
        TensorProto.UINT8: np.float32,
    }
    dtype = dtypes[kind]
    cast = TensorProto.FLOAT16 if kind == TensorProto.FLOAT16 else TensorProto.FLOAT
    nodes: list[Node] = [
        ("Cast", ["image"], ["x"], {"to": cast}),
        ("ReduceMean", ["x"], ["mean"], {"axes": axes, "keepdims": 0}),
        ("Gemm", ["mean", "weights", "bias"], ["logits"], {"transB": 1}),
        *(tail or [("Identity", ["logits"], ["answer"], {})]),
    ]
    arrays = {"weights": WEIGHTS.astype(dtype), "bias": np.zeros(5, dtype), **(constants or {})}
    out = TensorProto.FLOAT16 if kind == TensorProto.FLOAT16 else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(name, inputs, outputs, **attributes) for name, inputs, outputs, attributes in nodes],
        "network",
        [helper.make_tensor_value_info("image", kind, list(sides))],
        [helper.make_tensor_value_info("answer", out, list(answer))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def load(path: Path, wish: Wish | None = None) -> Network:
    """The file as a source, loaded."""
    return find_source(str(path), wish).load(NORMALISATION)


def run(found: Network, pixels: npt.NDArray[np.uint8], output: str = "CLASSIFICATION") -> npt.NDArray[np.float32]:
    """What the served graph gives."""
    session = onnxruntime.InferenceSession(found.graph, providers=["CPUExecutionProvider"])
    answer: npt.NDArray[np.float32] = session.run([output], {"PREPROCESSED_IMAGE": pixels})[0]
    return answer


def logits(pixels: npt.NDArray[np.uint8], *, normalised: bool = True) -> npt.NDArray[np.float32]:
    """What the network gives, by hand."""
    x = pixels.astype(np.float32)
    if normalised:
        x = (x - np.asarray(NORMALISATION.mean, np.float32)) / np.asarray(NORMALISATION.std, np.float32)
    return np.asarray(x.mean(axis=(1, 2)) @ WEIGHTS.T)


def softmax(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Over the classes."""
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("sides", "kind", "tolerance"),
    [
        (("N", 3, 8, 8), TensorProto.FLOAT, 1e-6),
        (("N", 8, 8, 3), TensorProto.FLOAT, 1e-6),
        (("N", 3, "height", "width"), TensorProto.FLOAT, 1e-6),
        (("N", 3, 8, 8), TensorProto.FLOAT16, 3e-3),
    ],
)
def test_pixels_are_normalised_and_turned(tmp_path: Path, sides: Any, kind: int, tolerance: float) -> None:
    """Channels first or last, FP32 or FP16: the graph takes UINT8 pictures and gives probabilities."""
    found = load(network(tmp_path / "model.onnx", sides=sides, kind=kind))
    pixels = synthetic_pictures(8)
    expected = softmax(logits(pixels))
    np.testing.assert_allclose(run(found, pixels), expected, atol=tolerance)
    np.testing.assert_allclose(found.reference(pixels), expected, atol=tolerance)
    assert (found.task, found.width) == ("classify", 5)


def test_the_interface_is_the_gateways(tmp_path: Path) -> None:
    """Names, types and shapes are those of every model here, whatever the file calls them."""
    session = onnxruntime.InferenceSession(load(network(tmp_path / "m.onnx")).graph)
    (image,), (answer,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("PREPROCESSED_IMAGE", "tensor(uint8)", ["N", 8, 8, 3])
    assert (answer.name, answer.type, answer.shape) == ("CLASSIFICATION", "tensor(float)", ["N", 5])


def test_uint8_pixels_are_passed_on(tmp_path: Path) -> None:
    """A network that takes pixels has its normalisation inside: none is added."""
    found = load(network(tmp_path / "m.onnx", sides=("N", 8, 8, 3), kind=TensorProto.UINT8))
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(found, pixels), softmax(logits(pixels, normalised=False)), atol=1e-6)


def test_a_served_file_can_be_served_again(tmp_path: Path) -> None:
    """The names that the gateway uses do not collide with the same names in the file."""
    first = load(network(tmp_path / "first.onnx"))
    (tmp_path / "second.onnx").write_bytes(first.graph)
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(load(tmp_path / "second.onnx"), pixels), run(first, pixels), atol=1e-6)


def test_probabilities_stay_what_they_are(tmp_path: Path) -> None:
    """No second softmax is put behind a first one."""
    found = load(network(tmp_path / "m.onnx", [("Softmax", ["logits"], ["answer"], {"axis": 1})]))
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(found, pixels), softmax(logits(pixels)), atol=1e-6)


def test_features_are_passed_on(tmp_path: Path) -> None:
    """For the task embed there is no softmax."""
    found = load(network(tmp_path / "m.onnx"), Wish(task="embed", normalise="none"))
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(found, pixels, "EMBEDDING"), logits(pixels), atol=1e-5)
    assert (found.task, found.width) == ("embed", 5)


@pytest.mark.parametrize("shape", [[1, 5], [1, -1], [-1, 5]])
def test_a_batch_of_one_is_set_free(tmp_path: Path, shape: list[int]) -> None:
    """A graph that was exported for one picture answers several, each as if it were alone."""
    tail: list[Node] = [("Reshape", ["logits", "shape"], ["answer"], {})]
    constants = {"shape": np.asarray(shape)}
    path = network(tmp_path / "m.onnx", tail, sides=(1, 3, 8, 8), constants=constants, answer=(1, 5))
    pixels = np.concatenate([synthetic_pictures(8)] * 2)
    np.testing.assert_allclose(run(load(path), pixels), softmax(logits(pixels)), atol=1e-6)


def test_a_batch_that_cannot_be_set_free_is_refused(tmp_path: Path) -> None:
    """A token for exactly one picture, as exporters fold it into a constant, stops the build."""
    tail: list[Node] = [
        ("Unsqueeze", ["logits", "one"], ["tokens"], {}),
        ("Concat", ["token", "tokens"], ["both"], {"axis": 1}),
        ("ReduceSum", ["both", "one"], ["answer"], {"keepdims": 0}),
    ]
    constants = {"token": np.ones((1, 1, 5), np.float32), "one": np.asarray([1])}
    path = network(tmp_path / "m.onnx", tail, sides=(1, 3, 8, 8), constants=constants, answer=(1, 5))
    with pytest.raises(SourceError, match="several pictures at once"):
        load(path)


@pytest.mark.parametrize("opset", [11, 12])
def test_an_old_opset_is_translated(tmp_path: Path, opset: int) -> None:
    """A file of an earlier age gets an opset that all runtimes take."""
    found = load(network(tmp_path / "m.onnx", opset=opset))
    assert onnx.load_from_string(found.graph).opset_import[0].version == 18
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(found, pixels), softmax(logits(pixels)), atol=1e-6)


def test_weights_beside_the_file_belong_to_it(tmp_path: Path) -> None:
    """External data is read into the graph, and a change of it changes the identity."""
    model = onnx.load(network(tmp_path / "whole.onnx"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    source = find_source(str(path))
    pixels = synthetic_pictures(8)
    np.testing.assert_allclose(run(source.load(NORMALISATION), pixels), softmax(logits(pixels)), atol=1e-6)
    before = source.identity()["sha256"]
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "m.data").write_bytes(data)
    assert source.identity()["sha256"] != before
    (tmp_path / "m.data").unlink()
    with pytest.raises(SourceError, match=r"'m\.data', which is no file beside it"):
        source.identity()
    with pytest.raises(SourceError, match="cannot be used"):
        source.load(NORMALISATION)


def test_the_identity_tells_files_apart(tmp_path: Path) -> None:
    """Name, kind and hash of the file; the file has no recipe for pictures."""
    source = find_source(str(network(tmp_path / "m.onnx")))
    assert source.identity()["weights"] == "file"
    assert source.identity()["name"] == source.name == "m.onnx"
    assert source.preprocess() is None


def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path) -> None:
    """Text, or half a file, is named with its path."""
    whole = network(tmp_path / "whole.onnx").read_bytes()
    for content in (b"not a model", whole[: len(whole) // 2]):
        (tmp_path / "m.onnx").write_bytes(content)
        with pytest.raises(SourceError, match=r"m\.onnx cannot be used"):
            load(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sides": ("N", 3, 9, 9)}, "pictures of 9 pixels, and preprocess.json has the size 8"),
        ({"sides": (2, 3, 8, 8), "answer": (2, 5)}, "2 pictures at a time"),
        ({"sides": ("N", 3, 8, 8), "kind": TensorProto.UINT8}, "needed are"),
        ({"tail": [("Sigmoid", ["logits"], ["answer"], {})]}, "scores from 0 to 1"),
        (
            {"tail": [("ReduceMax", ["logits"], ["answer"], {"axes": [1], "keepdims": 1})], "answer": ("N", 1)},
            "single number",
        ),
        (
            {"tail": [("ReduceMax", ["logits"], ["answer"], {"axes": [1], "keepdims": 0})], "answer": ("N",)},
            "one row for each",
        ),
        ({"tail": [("Log", ["logits"], ["answer"], {})]}, "not finite"),
    ],
)
def test_what_is_no_classifier_of_such_pictures_is_refused(tmp_path: Path, options: Any, words: str) -> None:
    """Other sizes, fixed batches, scores that are no probabilities, single numbers and NaN are named."""
    with pytest.raises(SourceError, match=words):
        load(network(tmp_path / "m.onnx", **options))


def test_two_outputs_are_refused(tmp_path: Path) -> None:
    """Nobody guesses which output is meant."""
    model = onnx.load(network(tmp_path / "m.onnx"))
    model.graph.output.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["N", 3]))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(SourceError, match="1 inputs and 2 outputs"):
        load(tmp_path / "m.onnx")


def test_notes_of_the_exporter_are_left_out(tmp_path: Path) -> None:
    """Stack traces in a file name somebody's folders: none of them is published."""
    model = onnx.load(network(tmp_path / "m.onnx"))
    model.graph.node[0].doc_string = "/home/somebody/secret.py"
    model.graph.node[1].metadata_props.add(key="trace", value="/home/somebody/secret.py")
    model.metadata_props.add(key="trace", value="/home/somebody/secret.py")
    onnx.save(model, tmp_path / "m.onnx")
    assert b"somebody" not in load(tmp_path / "m.onnx").graph


@pytest.mark.parametrize("place", ["../outside.data", "/dev/zero", "pipe", "link"])
def test_weights_from_elsewhere_are_never_read(tmp_path: Path, place: str) -> None:
    """Files outside of the model's folder, devices and pipes: refused by their names, before anything is opened."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.data").write_bytes(bytes(60))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "outside.data")
    path = network(folder / "m.onnx")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        onnx.external_data_helper.set_external_data(tensor, place)
        tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match="which is no file beside it"):
        find_source(str(path)).identity()


def test_weights_in_constants_count(tmp_path: Path) -> None:
    """Weights that stand in a node, and outside of the file, are part of what a model is made of."""
    path = network(tmp_path / "m.onnx")
    model = onnx.load(path)
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    constant = helper.make_node("Constant", [], ["weights"], value=weights)
    onnx.external_data_helper.set_external_data(constant.attribute[0].t, "w.data")
    constant.attribute[0].t.ClearField("raw_data")
    model.graph.initializer.remove(weights)
    model.graph.node.insert(0, constant)
    path.write_bytes(model.SerializeToString())
    (tmp_path / "w.data").write_bytes(WEIGHTS.tobytes())
    before = find_source(str(path)).identity()
    (tmp_path / "w.data").write_bytes((2 * WEIGHTS).tobytes())
    assert find_source(str(path)).identity() != before
