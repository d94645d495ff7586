from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from build_engines.errors import GraphError
from build_engines.preprocessing import Preprocessing
from build_engines.sources.checkpoint import read_checkpoint
from build_engines.sources.efficientnet_lite import LITE0, build_graph
from build_engines.sources.outputs import synthetic_pictures
from build_engines.sources.packaged import PACKAGED
from tests.build_engines.conftest import CLASSIFIER, TINY, TINY_NORMALISATION, Weights

Array = npt.NDArray[np.float64]


def run(model: bytes, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The model's answer in onnxruntime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    answer: npt.NDArray[np.float32] = session.run(["CLASSIFICATION"], {"PREPROCESSED_IMAGE": pictures})[0]
    return answer


def test_the_interface_is_what_triton_is_told(lite0: bytes) -> None:
    """UINT8 NHWC pixels in, FP32 probabilities of a thousand classes out, for any number of images."""
    session = onnxruntime.InferenceSession(lite0, providers=["CPUExecutionProvider"])
    (image,), (answer,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("PREPROCESSED_IMAGE", "tensor(uint8)", ["N", 224, 224, 3])
    assert (answer.name, answer.type, answer.shape) == ("CLASSIFICATION", "tensor(float)", ["N", 1000])


def test_synthetic_pictures_have_known_answers(lite0: bytes) -> None:
    """Black, ramps and noise get the classes and probabilities that the original network gives in torch."""
    answers = run(lite0, synthetic_pictures(224))
    assert answers.argmax(axis=1).tolist() == [111, 782, 21]
    np.testing.assert_allclose(answers.max(axis=1), [0.020724, 0.044001, 0.122646], atol=1e-5)


def test_an_answer_does_not_depend_on_the_batch(lite0: bytes) -> None:
    """A picture's probabilities are the same alone, in a batch and in another place of it."""
    pictures = synthetic_pictures(224)
    together = run(lite0, pictures)
    np.testing.assert_allclose(run(lite0, pictures[::-1])[::-1], together, atol=1e-6)
    for index, picture in enumerate(pictures):
        np.testing.assert_allclose(run(lite0, picture[None])[0], together[index], atol=1e-6)


def test_the_same_weights_make_the_same_file(lite0: bytes) -> None:
    """A second build has the same bytes, so that its hash says whether it is the same model."""
    weights = read_checkpoint(PACKAGED["efficientnet_lite0"].packaged().content)
    normalisation = Preprocessing.read((CLASSIFIER / "preprocess.json").read_bytes()).normalisation
    assert build_graph(LITE0, weights, normalisation).SerializeToString(deterministic=True) == lite0


def test_the_graph_computes_what_the_layers_say(tiny: bytes, tiny_weights: Weights) -> None:
    """A small network agrees with its layers written down one by one: padding, batch norm, skips, ReLU6."""
    pictures = synthetic_pictures(14)
    np.testing.assert_allclose(run(tiny, pictures), reference(tiny_weights, pictures), atol=1e-5)


def test_batch_norm_is_folded(lite0: bytes) -> None:
    """The file holds convolutions only, and the normalisation of the pixels comes first."""
    kinds = [node.op_type for node in onnx.load_from_string(lite0).graph.node]
    assert kinds[:4] == ["Cast", "Sub", "Div", "Transpose"]
    assert set(kinds[4:]) == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm", "Softmax"}


def test_features_are_what_the_last_layer_is_given(tiny_weights: Weights) -> None:
    """For the task embed the graph ends before the classifier's matrix: matrix and softmax by hand give the classes."""
    pictures = synthetic_pictures(14)
    model = build_graph(TINY, tiny_weights, TINY_NORMALISATION, "embed").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (features,) = session.run(["EMBEDDING"], {"PREPROCESSED_IMAGE": pictures})
    assert features.shape == (3, TINY.head)
    logits = features @ tiny_weights["_fc.weight"].T + tiny_weights["_fc.bias"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    found = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, reference(tiny_weights, pictures), atol=1e-5)


def test_a_missing_weight_is_named(tiny_weights: Weights) -> None:
    """A checkpoint of another network is refused by the first weight that it lacks."""
    del tiny_weights["_blocks.1._bn2.running_var"]
    with pytest.raises(GraphError, match=r"no _blocks\.1\._bn2\.running_var"):
        build_graph(TINY, tiny_weights, TINY_NORMALISATION)


def test_a_weight_of_another_shape_is_named(tiny_weights: Weights) -> None:
    """A head with other classes is refused with both shapes."""
    tiny_weights["_fc.weight"] = np.zeros((7, 5), np.float32)
    with pytest.raises(GraphError, match=r"_fc\.weight has the shape \(7, 5\), and the network needs \(3, 5\)"):
        build_graph(TINY, tiny_weights, TINY_NORMALISATION)


def test_a_weight_left_over_is_named(tiny_weights: Weights) -> None:
    """A larger network's checkpoint is refused by what has no place."""
    tiny_weights["_blocks.9._expand_conv.weight"] = np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(GraphError, match=r"no use for 1 .*_blocks\.9\._expand_conv\.weight"):
        build_graph(TINY, tiny_weights, TINY_NORMALISATION)


def test_a_weight_that_is_not_finite_is_named(tiny_weights: Weights) -> None:
    """A damaged checkpoint does not become a model."""
    tiny_weights["_conv_head.weight"][0, 0] = np.nan
    with pytest.raises(GraphError, match=r"_conv_head\.weight holds values that are not finite"):
        build_graph(TINY, tiny_weights, TINY_NORMALISATION)


def reference(weights: Weights, pictures: npt.NDArray[np.uint8]) -> Array:
    """TINY in numpy, in double precision, layer by layer, with nothing folded."""
    x = (pictures - np.asarray(TINY_NORMALISATION.mean)) / np.asarray(TINY_NORMALISATION.std)
    x = relu6(norm(conv(x.transpose(0, 3, 1, 2), weights["_conv_stem.weight"], 2), weights, "_bn0"))
    for block, expand, stride, skip in (("0", False, 1, True), ("1", True, 2, False), ("2", True, 1, True)):
        name, start = f"_blocks.{block}", x
        if expand:
            x = relu6(norm(conv(x, weights[f"{name}._expand_conv.weight"]), weights, f"{name}._bn0"))
        filters = weights[f"{name}._depthwise_conv.weight"]
        channels = [conv(x[:, [i]], filters[[i]], stride) for i in range(len(filters))]
        x = relu6(norm(np.concatenate(channels, axis=1), weights, f"{name}._bn1"))
        x = norm(conv(x, weights[f"{name}._project_conv.weight"]), weights, f"{name}._bn2")
        x = x + start if skip else x
    x = relu6(norm(conv(x, weights["_conv_head.weight"]), weights, "_bn1"))
    logits = x.mean(axis=(2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def conv(x: Array, filters: npt.NDArray[Any], stride: int = 1) -> Array:
    """A convolution with TensorFlow's "SAME" padding: the output is ⌈size / stride⌉, the odd pixel at the end."""
    size, kernel = x.shape[2], filters.shape[2]
    out = (size + stride - 1) // stride
    total = max((out - 1) * stride + kernel - size, 0)
    before, after = total // 2, total - total // 2
    x = np.pad(x, ((0, 0), (0, 0), (before, after), (before, after)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (1, 1, kernel, kernel))[:, :, ::stride, ::stride, 0, 0]
    return np.asarray(np.einsum("nchwij,ocij->nohw", windows, filters.astype(np.float64)))


def norm(x: Array, weights: Weights, name: str) -> Array:
    """Batch norm with TensorFlow's epsilon."""
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"].astype(np.float64)[:, None, None]
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    return np.asarray((x - mean) / np.sqrt(variance + 1e-3) * gamma + beta)


def relu6(x: Array) -> Array:
    """Between 0 and 6."""
    return np.clip(x, 0, 6)
