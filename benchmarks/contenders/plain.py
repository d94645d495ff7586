"""The plain way: FastAPI and onnxruntime in one process, one photo a request, no batching.

One thread a session (the workers use the cores), the work in a thread so that the event loop is free. The pictures
are Pillow's business, or with PLAIN_DECODER=ours that of this project's imaging.py: the same pixels for less.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import onnxruntime
from fastapi import FastAPI, File, UploadFile
from PIL import Image, ImageOps

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


def with_pillow(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    scale = recipe.resize_to / min(picture.size)
    width, height = int(picture.width * scale), int(picture.height * scale)
    left, top = (width - recipe.size) // 2, (height - recipe.size) // 2
    picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture.crop((left, top, left + recipe.size, top + recipe.size)))


def with_ours(data: bytes) -> np.ndarray:  # type: ignore[type-arg]
    pixels: np.ndarray = imaging.preprocess(data, recipe, max_pixels=64_000_000)  # type: ignore[type-arg]
    return pixels


pixels_of = with_ours if os.environ.get("PLAIN_DECODER") == "ours" else with_pillow


@app.post("/classify")
def classify(files: Annotated[UploadFile, File()]) -> list[dict[str, str | float]]:
    pixels = pixels_of(files.file.read())
    (probabilities,) = session.run(None, {"PREPROCESSED_IMAGE": pixels[np.newaxis]})
    best = np.argsort(-probabilities[0])[:5]
    return [{"label": labels[i], "probability": float(probabilities[0][i])} for i in best]
