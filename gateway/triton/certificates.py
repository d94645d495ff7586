"""The certificates of engines, as they come with the configurations of an ensemble's steps.

An engine whose certificate is of another version, or of other preprocessing, than what runs would answer wrongly and
look well: it is not ready.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import ModelNotReady
from gateway.triton import ModelConfig, ModelState, Step

# Parameters that the builder writes into the steps' configurations; model_repository/README.md tells of them.
CERTIFICATE, PREPROCESS, PIXELS_SHA256 = "certificate", "preprocess", "pixels_sha256"
MAX_CHARS = 64 * 1024  # the builder's have a few thousand
MAX_DEPTH = 32  # far below what a JSON encoder follows


def find_certificates(
    config: ModelConfig, configs: Mapping[str, ModelConfig], states: Mapping[str, ModelState]
) -> list[tuple[ModelConfig, Mapping[str, Any]]]:
    """The certificates of the engines that the model `config` runs, each with its step; empty if there are none.

    `configs` and `states` are those of every model that is ready. Raises `ModelNotReady` unless each certificate is
    of the very version that is served, and every preprocessor among the steps makes the pixels that the engine was
    certified with. A preprocessor that does not say which pixels it makes is refused too: the builder always writes
    both sides, so one of them was exchanged, and other pixels would give labels that nobody measured.
    """
    parts: list[tuple[ModelConfig, str]] = []
    for step in config.steps or (Step(config.name),):
        if step.model not in configs:
            raise not_ready(f"its step {step.model} is not ready")
        asked = str(step.version) if step.version > 0 else states[step.model].version
        parts.append((configs[step.model], asked))
    preprocessors = [part for part, _ in parts if PREPROCESS in part.parameters]
    found = {part.parameters.get(PIXELS_SHA256, f"none in {part.name}") for part in preprocessors}
    certified = []
    for part, served in parts:
        if CERTIFICATE not in part.parameters:
            continue
        certificate = _read_certificate(part.name, part.parameters[CERTIFICATE])
        version, pixels = text_at(certificate, "version"), text_at(certificate, "preprocess", PIXELS_SHA256)
        if version is None or (pixels is None and (preprocessors or "preprocess" in certificate)):
            raise not_ready(f"the certificate of {part.name} lacks its version or preprocess.{PIXELS_SHA256}")
        if version != served:
            raise not_ready(f"the certificate of {part.name} is of version {version}, and version {served} is served")
        if found != {pixels} - {None}:
            raise not_ready(
                f"{part.name} was certified with the pixels {pixels}, "
                f"and what runs is {', '.join(sorted(found)) or 'no preprocessor'}"
            )
        certified.append((part, certificate))
    return certified


def _read_certificate(network: str, text: str) -> Mapping[str, Any]:
    """The parameter's JSON object; `ModelNotReady` unless it is one that can be shown to callers as it is."""
    if len(text) > MAX_CHARS:
        raise not_ready(f"the certificate of {network} has {len(text)} characters")
    try:
        document = json.loads(text)
        # NaN, infinity and lone surrogates pass the parser, and would fail when they are sent.
        json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise not_ready(f"the certificate of {network} is not JSON: {error}") from error
    if not isinstance(document, dict) or _depth(document) > MAX_DEPTH:
        raise not_ready(f"the certificate of {network} is not an object, or too deep a one")
    return MappingProxyType(document)


def _depth(value: Any) -> int:
    """How deep lists and objects lie in each other."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return deepest


def weights_of(certificate: Mapping[str, Any] | None) -> str | None:
    """Where the engine's weights come from: "pretrained", "file" or "random"."""
    return text_at(certificate, "source", "weights")


def text_at(document: Any, *keys: str) -> str | None:
    """The string at `keys`, one below the other; None if there is none."""
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document if isinstance(document, str) else None


def not_ready(private: str) -> ModelNotReady:
    return ModelNotReady("The model is not ready.", private=private)
