from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from build_engines.errors import GraphError, SourceError
from build_engines.preprocessing import Normalisation
from tests.build_engines.sources.with_torch.conftest import noise

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")
from build_engines.export import Served, export, width  # noqa: E402

RGB = Normalisation(16, "RGB", (120.0, 110.0, 100.0), (60.0, 50.0, 40.0))
BGR = Normalisation(16, "BGR", (100.0, 110.0, 120.0), (40.0, 50.0, 60.0))


@pytest.fixture(scope="module")
def network() -> Any:
    """A small convolutional network of five classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 5),
        ).eval()


def expected(network: Any, pixels: Any, normalisation: Normalisation) -> Any:
    """The network's logits for RGB pixels, normalised by hand."""
    x = (pixels - np.asarray(normalisation.mean)) / np.asarray(normalisation.std)
    with torch.no_grad():
        return network(torch.tensor(x.transpose(0, 3, 1, 2), dtype=torch.float32))


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_the_graph_computes_what_the_network_does(network: Any, task: str) -> None:
    """UINT8 pixels in, any number of them; probabilities or the plain outputs out, under the gateway's names."""
    graph = export(Served(network, RGB, softmax=task == "classify"), task)
    session = onnxruntime.InferenceSession(graph)
    (image,), (answer,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("PREPROCESSED_IMAGE", "tensor(uint8)", ["N", 16, 16, 3])
    name = {"classify": "CLASSIFICATION", "embed": "EMBEDDING"}[task]
    assert (answer.name, answer.type, answer.shape) == (name, "tensor(float)", ["N", 5])
    for count in (1, 2, 7):
        pixels = noise(count, 16)
        logits = expected(network, pixels, RGB)
        wanted = logits.softmax(1) if task == "classify" else logits
        (found,) = session.run(None, {"PREPROCESSED_IMAGE": pixels})
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_bgr_pixels_are_turned_for_an_rgb_network(network: Any) -> None:
    """Mean and std are in the order of the pixels; the network still sees RGB."""
    session = onnxruntime.InferenceSession(export(Served(network, BGR, softmax=False), "classify"))
    pixels = noise(3, 16)
    (found,) = session.run(None, {"PREPROCESSED_IMAGE": np.ascontiguousarray(pixels[..., ::-1])})
    np.testing.assert_allclose(found, expected(network, pixels, RGB), atol=1e-5)


def test_a_bgr_network_gets_bgr(network: Any) -> None:
    """A network that wants what the pixels are is not turned."""
    assert not Served(network, BGR, softmax=False, color="BGR").swap
    assert Served(network, RGB, softmax=False, color="BGR").swap


def test_runtimes_can_read_the_graph(network: Any) -> None:
    """Opset and IR version that TensorRT, OpenVINO and onnxruntime take; batch norm folded, no index arithmetic."""
    model = onnx.load_from_string(export(Served(network, RGB, softmax=True), "classify"))
    assert model.ir_version <= 10
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"BatchNormalization", "Shape", "Range", "Gather"}


def test_the_file_says_nothing_about_this_machine(network: Any) -> None:
    """The same bytes every time, without the exporter's stack traces."""
    graph = export(Served(network, RGB, softmax=True), "classify")
    assert graph == export(Served(network, RGB, softmax=True), "classify")
    assert b".py" not in graph
    assert b"stack_trace" not in graph


def test_exporting_is_quiet(network: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout, on stderr or as a warning, and logging works as before afterwards."""
    export(Served(network, RGB, softmax=True), "classify")
    assert tuple(capfd.readouterr()) == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


def test_a_network_that_cannot_be_exported_is_named() -> None:
    """A network that looks at the values of its pictures has no graph: the error is a sentence."""

    class Looking(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is Any here
        def forward(self, x: Any) -> Any:
            return x.mean((2, 3)) if float(x.sum()) > 0 else x.amax((2, 3))

    with pytest.raises(GraphError, match="cannot be exported to ONNX"):
        export(Served(Looking(), RGB, softmax=False), "embed")


def test_a_network_for_another_size_is_named() -> None:
    """Pictures of a size that the network does not take are noticed before the export."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    with pytest.raises(SourceError, match=r"16 × 16 .*--size"):
        width(Served(network, RGB, softmax=False))


def test_the_output_must_be_a_row_for_each_picture() -> None:
    """A map of features is neither classes nor an embedding."""
    with pytest.raises(SourceError, match="one row of numbers for each picture"):
        width(Served(torch.nn.Conv2d(3, 4, 1), RGB, softmax=False))


def test_weights_beyond_the_format_are_refused() -> None:
    """An ONNX file ends at 2 GB: larger networks are refused before the export starts."""
    with torch.device("meta"):
        network = torch.nn.Linear(2**15, 2**15)
    with pytest.raises(GraphError, match="2 GB"):
        export(Served(network, RGB, softmax=False), "embed")
