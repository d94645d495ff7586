"""In which precision a TensorRT engine computes, from what its inspector says of each layer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

# TensorRT's own layers by their type; Myelin's, which are all of the type "kgen" or "gemm", by what they are named.
_TYPES = ("conv", "gemm", "matrixmultiply", "matmul", "fullyconnected", "einsum", "attention", "correlation")
_NAMES = re.compile(r"gemm|matmul|mha|_fc|[cC]onv(?!ert)")
_FUSED = ("kgen", "myelin", "fusion")

# Narrowest first; BF16 before FP16, whose long name is a part of "bfloat16".
_WORDS = (
    ("fp8", re.compile("fp8|float8")),
    ("int8", re.compile("(?<!u)int8")),
    ("bf16", re.compile("bf16|bfloat16")),
    ("fp16", re.compile("half|fp16|float16")),
    ("fp32", re.compile("fp32|float")),
)
_ORDER = tuple(name for name, _ in _WORDS)


def layer_precisions(information: str) -> dict[str, int]:
    """How many convolutions and matrix products of an engine run in each precision: "int8", "fp16", "fp32", ….

    `information` is what `IEngineInspector.get_engine_information` gives as JSON for an engine that was built with
    detailed profiling verbosity. A layer counts by its weights where they are told, else by the narrowest of its
    inputs; one that tells neither counts as "unknown". Raises `ValueError` for anything else than such JSON.

    The format is not documented. Seen: LayerType "CaskConvolution" or "gemm" with tensors of "Half", "Int8",
    "Float", "BFloat16" under "Format/Datatype" (also "Channel major FP16 format where channel % 8 == 0", and
    "Datatype" alone), and layers fused by Myelin of the type "kgen".
    """
    # Names of fused layers are separated by control characters, which strict JSON does not have.
    document = json.loads(information, strict=False)
    layers = document.get("Layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise ValueError("there is no list of layers in it")
    if layers and not all(isinstance(layer, dict) for layer in layers):
        raise ValueError("its layers are only names: build with detailed profiling verbosity")
    return dict(Counter(_precision(layer) for layer in layers if _computes(layer)))


def _computes(layer: Mapping[str, Any]) -> bool:
    kind = str(layer.get("LayerType", "")).lower()
    if any(word in kind for word in _FUSED):
        return bool(_NAMES.search(str(layer.get("Name", ""))) or _NAMES.search(str(layer.get("TacticName", ""))))
    return any(word in kind for word in _TYPES)


def _precision(layer: Mapping[str, Any]) -> str:
    weights = layer.get("Weights")
    told = _word(str(weights.get("Type", ""))) if isinstance(weights, dict) else None
    found = [told] if told else [word for word in map(_word, _types(layer)) if word]
    return min(found, key=_ORDER.index, default="unknown")


def _types(layer: Mapping[str, Any]) -> Iterator[str]:
    for tensor in layer.get("Inputs", []):
        if isinstance(tensor, dict):
            yield str(tensor.get("Format/Datatype") or tensor.get("Datatype") or tensor.get("Format") or "")


def _word(text: str) -> str | None:
    return next((name for name, pattern in _WORDS if pattern.search(text.lower())), None)
