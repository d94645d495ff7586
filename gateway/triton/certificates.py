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
CERTIFICATE, PREPROCESS, PREPROCESS_SHA256 = "certificate", "preprocess", "preprocess_sha256"
MAX_CHARS = 64 * 1024  # the builder's have a few thousand
MAX_DEPTH = 32  # far below what a JSON encoder follows


def find_certificate(
    config: ModelConfig, configs: Mapping[str, ModelConfig], states: Mapping[str, ModelState]
) -> Mapping[str, Any] | None:
    """The certificate of the engine that the model `config` runs; None if no step carries one.

    `configs` and `states` are those of every model that is ready. Raises `ModelNotReady` unless the certificate is
    of the very version that is served, and every preprocessor among the steps has loaded the recipe that the engine
    was certified with. A preprocessor that does not say which recipe it has is refused too: the builder always
    writes both sides, so one of them was exchanged, and other pixels would give labels that nobody measured.
    """
    parts: list[tuple[ModelConfig, str]] = []
    for step in config.steps or (Step(config.name),):
        if step.model not in configs:
            raise not_ready(f"its step {step.model} is not ready")
        asked = str(step.version) if step.version > 0 else states[step.model].version
        parts.append((configs[step.model], asked))
    certified = [(part, asked) for part, asked in parts if CERTIFICATE in part.parameters]
    if not certified:
        return None
    if len(certified) > 1:
        raise not_ready(f"more than one step carries a certificate: {', '.join(p.name for p, _ in certified)}")
    ((network, served),) = certified
    certificate = _read_certificate(network.name, network.parameters[CERTIFICATE])
    version, sha256 = text_at(certificate, "version"), text_at(certificate, "preprocess", "sha256")
    if version is None or sha256 is None:
        raise not_ready(f"the certificate of {network.name} lacks its version or preprocess.sha256")
    if version != served:
        raise not_ready(f"the certificate of {network.name} is of version {version}, and version {served} is served")
    preprocessors = [part for part, _ in parts if PREPROCESS in part.parameters]
    found = {part.parameters.get(PREPROCESS_SHA256, f"none in {part.name}") for part in preprocessors}
    if found != {sha256}:
        raise not_ready(
            f"{network.name} was certified with the preprocessing {sha256}, "
            f"and what runs is {', '.join(sorted(found)) or 'no preprocessor'}"
        )
    return certificate


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
