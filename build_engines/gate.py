"""The check that a built model must pass before it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build_engines.errors import GateError
from build_engines.serving.onnx_classifier import INPUT, OUTPUT, UnfitError, read_labels

# Probabilities of one image sum to 1, and are the same alone and in a batch, within this.
TOLERANCE = 1e-3


def check(onnx: bytes, labels: Path) -> None:
    """Runs the model in onnxruntime on synthetic pictures, alone and together.

    Raises `GateError` when it does not run, when an answer is not finite, does not sum to 1 or depends on the
    other pictures, or when `labels` does not name the classes line by line.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised, too
    try:
        session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        pictures = synthetic_pictures(int(session.get_inputs()[0].shape[1]))
        together = _run(session, pictures)
        alone = np.concatenate([_run(session, picture[None]) for picture in pictures])
    except Exception as error:  # onnxruntime's own errors share no base but this
        raise GateError(f"The built model does not run ({error}); nothing was published.") from error
    if together.ndim != 2 or len(together) != len(pictures):
        raise GateError(f"The built model answers with the shape {together.shape}; nothing was published.")
    if not np.isfinite(together).all():
        raise GateError("The built model answers with values that are not finite; nothing was published.")
    if np.abs(together.sum(axis=1) - 1).max() > TOLERANCE:
        raise GateError("The built model's probabilities do not sum to 1; nothing was published.")
    if np.abs(together - alone).max() > TOLERANCE:
        raise GateError("The built model's answers depend on the batch; nothing was published.")
    try:
        read_labels(labels, together.shape[1])
    except UnfitError as error:
        raise GateError(f"{error} Nothing was published.") from error


def synthetic_pictures(size: int) -> npt.NDArray[np.uint8]:
    """Three pictures, always the same: black, two crossed ramps, and noise. UINT8 [3, size, size, 3]."""
    ramp = np.linspace(0, 255, size, dtype=np.uint8)
    crossed = np.stack([*np.meshgrid(ramp, ramp), np.full((size, size), 128, np.uint8)], axis=-1)
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return np.stack([np.zeros_like(noise), crossed, noise])


def _run(session: Any, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    probabilities: npt.NDArray[np.float32] = session.run([OUTPUT], {INPUT: pictures})[0]
    return probabilities
