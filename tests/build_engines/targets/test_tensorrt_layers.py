from __future__ import annotations

import json
from typing import Any

import pytest

from build_engines.targets.tensorrt_layers import layer_precisions


def tensors(*types: str) -> list[dict[str, Any]]:
    return [{"Name": f"t{i}", "Dimensions": [1, 8], "Format/Datatype": kind} for i, kind in enumerate(types)]


def counted(*layers: dict[str, Any]) -> dict[str, int]:
    return layer_precisions(json.dumps({"Layers": list(layers), "Bindings": ["PREPROCESSED_IMAGE"]}))


def test_convolutions_count_by_their_weights() -> None:
    """A convolution that takes INT8 weights is one in INT8, whatever it hands on."""
    layer = {
        "Name": "conv1 + relu",
        "LayerType": "CaskConvolution",
        "Inputs": tensors("Int8"),
        "Outputs": tensors("Half"),
    }
    assert counted({**layer, "Weights": {"Type": "Int8", "Count": 108}}) == {"int8": 1}
    assert counted({**layer, "Weights": {"Type": "Half", "Count": 108}}) == {"fp16": 1}


def test_layers_without_weights_count_by_their_narrowest_input() -> None:
    """Matrix products of Myelin name no weights; the scale of an INT8 one is a float beside it."""
    assert counted({"Name": "/fc/Gemm_myl0_3", "LayerType": "gemm", "Inputs": tensors("Half", "Half")}) == {"fp16": 1}
    assert counted({"Name": "/fc/Gemm_myl0_3", "LayerType": "gemm", "Inputs": tensors("Int8", "Int8", "Float")}) == {
        "int8": 1
    }


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("Float", "fp32"),
        ("Row major linear FP32", "fp32"),
        ("Half", "fp16"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("BFloat16", "bf16"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("FP8", "fp8"),
        ("UInt8", "unknown"),
        ("Int32", "unknown"),
        ("N/A due to dynamic shapes", "unknown"),
    ],
)
def test_words_for_types(words: str, precision: str) -> None:
    """Every way in which TensorRT was seen to name a type is understood; UINT8 is no INT8."""
    assert counted({"Name": "c", "LayerType": "Convolution", "Inputs": tensors(words)}) == {precision: 1}


def test_types_under_their_own_key() -> None:
    """Some releases tell format and type apart."""
    layer = {"Name": "c", "LayerType": "CaskGemmConvolution", "Inputs": [{"Format": "HWC8", "Datatype": "Half"}]}
    assert counted(layer) == {"fp16": 1}


def test_only_what_computes_is_counted() -> None:
    """Copies, pooling and fused elementwise work say nothing about a network's precision; fused attention does."""
    half = {"Inputs": tensors("Half"), "Outputs": tensors("Half")}
    assert counted(
        {"Name": "Reformatting CopyNode for Input Tensor 0 to conv1", "LayerType": "Reformat", **half},
        {"Name": "pool", "LayerType": "CaskPooling", **half},
        {"Name": "__myl_CastSubDivTran_myl0_0", "LayerType": "kgen", "Metadata": "[ONNX Layer: conv1]", **half},
        {"Name": "__myl_MoveConc", "LayerType": "kgen", "Metadata": "[ONNX Layer: /fc/MatMul]", **half},
        {"Name": "_gemm_mha_v2_myl0_4", "LayerType": "kgen", **half},
    ) == {"fp16": 1}


def test_names_with_control_characters() -> None:
    """TensorRT joins the names of fused layers with control characters, which strict JSON forbids."""
    raw = '{"Layers": [{"Name": "a", "LayerType": "gemm", "Metadata": "x\x1fy\x1e", "Inputs": [{"Datatype": "Half"}]}]}'
    assert layer_precisions(raw) == {"fp16": 1}


@pytest.mark.parametrize("information", ["", "[]", '{"Layers": ["conv1", "conv2"]}'])
def test_anything_else_is_an_error(information: str) -> None:
    """An engine that was built without details, or another format, is not mistaken for one that computes nothing."""
    with pytest.raises(ValueError, match=r"layers|Expecting"):
        layer_precisions(information)
