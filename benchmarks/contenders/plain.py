"""The plain way: FastAPI and onnxruntime in one process, one photo a request, no batching.

It gets the best of what such a service can be given without ours: the same decoder and resizer, one thread a
session (the workers use the cores), the work in a thread so that the event loop is free.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
from fastapi import FastAPI, File, UploadFile

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("imaging", ROOT / "model_repository/preprocessor/1/imaging.py")
assert _spec is not None
assert _spec.loader is not None
imaging = importlib.util.module_from_spec(_spec)
sys.modules["imaging"] = imaging
_spec.loader.exec_module(imaging)

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.inter_op_num_threads = 1
newest = max((ROOT / "model_repository/classifier").glob("[0-9]*"), key=lambda version: int(version.name))
session = onnxruntime.InferenceSession(newest / "model.onnx", options, providers=["CPUExecutionProvider"])
recipe = imaging.Recipe.from_json((ROOT / "model_repository/classifier/preprocess.json").read_text())
labels = (ROOT / "model_repository/classifier/labels.txt").read_text().splitlines()
app = FastAPI()


@app.post("/classify")
def classify(files: Annotated[UploadFile, File()]) -> list[dict[str, str | float]]:
    pixels = imaging.preprocess(files.file.read(), recipe, max_pixels=64_000_000)
    (probabilities,) = session.run(None, {"PREPROCESSED_IMAGE": pixels[np.newaxis]})
    best = np.argsort(-probabilities[0])[:5]
    return [{"label": labels[i], "probability": float(probabilities[0][i])} for i in best]
