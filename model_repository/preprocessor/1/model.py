"""Triton's Python backend: encoded image files → PREPROCESSED_IMAGE and IMAGE_STATUS.

Tensors and status codes are in README.md of the model repository; the pixels are `imaging.py`'s work.
"""

import hashlib
import importlib.util
import io
import json
import os
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # lives in Triton's backend folder
from PIL import Image

if TYPE_CHECKING:
    import fair_pool
    import guard
    import imaging
else:

    def _beside(name: str) -> Any:
        """By path: the name could be anyone's on the path that Triton's stub gives us."""
        spec = importlib.util.spec_from_file_location(f"tidegate_{name}", Path(__file__).with_name(f"{name}.py"))
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    fair_pool, guard, imaging = _beside("fair_pool"), _beside("guard"), _beside("imaging")

# Of one picture: 64 megapixels, as the HTTP contract says, and what those cost at most, docs/limits.md.
DEFAULT_MAX_PIXELS = 64_000_000
DEFAULT_CPU_SECONDS = 5
DEFAULT_MEMORY_MIB = 1536
LARGE = 16_000_000  # pixels; a larger picture may take a gigabyte, so few are decoded at one time
LARGE_AT_ONCE = 2
_FOREVER = 1e15  # microseconds


class TritonPythonModel:
    """One process of Triton; all images of all requests that it is handed at once share one pool of threads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the configuration and the recipe; raises RuntimeError or ValueError that says what is wrong."""
        if int(np.__version__.split(".")[0]) >= 2:
            raise RuntimeError(
                f"numpy {np.__version__} is installed, but Triton's Python backend up to 2.51 reads the arrays of "
                "numpy 2 as 0xFF bytes, without an error; install numpy<2"
            )
        config: dict[str, Any] = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        recipe_file = Path(args["model_repository"]).parent / parameters["preprocess"]
        recipe = _certified(recipe_file, parameters.get("preprocess_sha256"))
        self._recipe = imaging.Recipe.from_json(recipe)
        promised = parameters.get("pixels_sha256")
        if promised not in (None, self._recipe.pixels_sha256):
            raise ValueError(
                f"{recipe_file} makes other pixels than config.pbtxt promises to those who share them (their SHA-256 "
                f"is {self._recipe.pixels_sha256}, not {promised}): build again (python -m build_engines)"
            )
        size = self._recipe.size
        (pixels,) = (output for output in config["output"] if output["name"] == "PREPROCESSED_IMAGE")
        if [int(side) for side in pixels["dims"]] != [size, size, 3]:
            raise ValueError(f"config.pbtxt promises {pixels['dims']}, {parameters['preprocess']} makes {size}")
        threads = _positive(parameters, "threads", len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(threads, "preprocess")
        self._apart = fair_pool.FairPool(threads, "preprocess-apart")  # they only wait for the decoder's processes
        self._large = fair_pool.FairPool(LARGE_AT_ONCE, "preprocess-large")
        self._max_pixels = _positive(parameters, "max_pixels", DEFAULT_MAX_PIXELS)
        self._guard = guard.Guard(
            recipe.decode(),
            size,
            cpu_seconds=_positive(parameters, "cpu_seconds", DEFAULT_CPU_SECONDS),
            memory=_positive(parameters, "memory_mib", DEFAULT_MEMORY_MIB) << 20,
        )
        for kind in ("JPEG", "PNG"):  # else libraries that do not fit together would pass for corrupt images
            imaging.preprocess(_sample(kind), self._recipe, max_pixels=self._max_pixels)
        if (status := self._guard.preprocess(memoryview(_sample("PNG")), self._max_pixels)[0]) != imaging.Status.OK:
            raise RuntimeError(f"the decoder's process gives status {status} for a good picture")

    def execute(self, requests: list[Any]) -> "list[Any | None]":
        """One response per request, in order. A bad image is a status, bad tensors are an error of that request.

        None stands for an answer that is sent later, so that a costly picture holds up nobody else's.
        """
        answers = [self._start(request) for request in requests]
        return [answer.now_or_later() if isinstance(answer, _Answer) else answer for answer in answers]

    def finalize(self) -> None:
        """Stop the threads and the decoder's processes."""
        self._pool.shutdown()
        self._apart.shutdown()
        self._large.shutdown()
        self._guard.close()

    def _start(self, request: Any) -> "_Answer | Any":
        files = pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "IMAGE_LENGTH").as_numpy()
        if files.dtype != np.uint8 or files.ndim != 2 or lengths.shape != (len(files), 1):
            words = f"RAW_IMAGE {files.dtype} {files.shape} and IMAGE_LENGTH {lengths.shape} do not fit together"
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(words))
        answer = _Answer(request, len(files), self._recipe.size)
        answer.work = [
            self._pool.submit(self._preprocess, file, int(length), answer, i)
            for i, (file, length) in enumerate(zip(files, lengths[:, 0], strict=True))
        ]
        return answer

    def _preprocess(self, file: npt.NDArray[np.uint8], length: int, answer: "_Answer", row: int) -> None:
        if not 0 <= length <= len(file):
            answer.statuses[row] = imaging.Status.CORRUPT
            return
        if answer.expired():
            return
        image = file.data[:length]  # a view: neither are the bytes copied, nor does a decoder see what lies behind
        if not imaging.costs_little(image):
            turn = answer.begin()
            limit = min(LARGE, self._max_pixels)
            self._apart.submit(turn, lambda: self._preprocess_apart(image, answer, row, turn, limit))
            return
        try:
            answer.pixels[row] = imaging.preprocess(image, self._recipe, max_pixels=self._max_pixels)
        except imaging.ImageError as error:
            answer.statuses[row] = error.status

    def _preprocess_apart(self, image: memoryview, answer: "_Answer", row: int, turn: int, limit: int) -> None:
        try:
            if answer.expired():
                return
            status, pixels = self._guard.preprocess(image, limit, answer.until)
            if status == imaging.Status.TOO_LARGE and limit < self._max_pixels:
                answer.begin()
                self._large.submit(turn, lambda: self._preprocess_apart(image, answer, row, turn, self._max_pixels))
                return
            answer.statuses[row] = status
            if pixels is not None:
                answer.pixels[row] = pixels
        except guard.Ended as end:
            pb_utils.Logger.log_warn(f"preprocessor: decoding a file of {len(image)} bytes was ended by {end}")
            answer.statuses[row] = imaging.Status.CORRUPT
        except Exception as error:  # a mistake of ours; it costs one request
            answer.error = error
        finally:
            answer.end()


class _Answer:
    """The outputs of one request, while they are being filled: by `work`, and by what `begin` and `end` count."""

    def __init__(self, request: Any, images: int, size: int) -> None:
        self._request = request  # its memory is what the images are read from
        self.pixels = np.zeros((images, size, size, 3), np.uint8)
        self.statuses = np.full((images, 1), imaging.Status.OK, np.int32)
        self.work: list[Future[None]] = []
        self.error: Exception | None = None
        self.until = time.monotonic() + (request.timeout() or _FOREVER) / 1e6
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self._sender: Any = None

    def expired(self) -> bool:
        """Whether the caller's time has passed, after which nobody looks at the answer: so nothing is done for it."""
        if time.monotonic() > self.until:
            self.error = TimeoutError("the request's time has passed")
        return self.error is not None

    def begin(self) -> int:
        """One more piece of work that the answer must wait for; how many there were before."""
        with self._lock:
            self._begun += 1
            return self._begun - 1

    def end(self) -> None:
        """A piece is done; with the last one the answer is sent, if nobody waits for it."""
        with self._lock:
            self._ended += 1
            sender = self._sender if self._ended == self._begun else None
        if sender is not None:
            sender.send(self._response(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def now_or_later(self) -> "Any | None":
        """The response; or None, and it is sent when the last picture is done."""
        wait(self.work)
        with self._lock:
            if self._ended < self._begun:
                self._sender = self._request.get_response_sender()
                return None
        return self._response()

    def _response(self) -> Any:
        try:
            for future in self.work:
                future.result()
            if self.error is not None:
                raise self.error
        except Exception as error:  # images raise ImageError only: this is a mistake of ours, or too late
            pb_utils.Logger.log_error(f"preprocessor: {error!r}")
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError("preprocessing failed"))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("PREPROCESSED_IMAGE", self.pixels), pb_utils.Tensor("IMAGE_STATUS", self.statuses)]
        )


def _certified(recipe_file: Path, sha256: str | None) -> bytes:
    """The recipe; ValueError unless its SHA-256 is `sha256` (hexadecimal), the one that the builder wrote down."""
    content = recipe_file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise ValueError(
            f"{recipe_file} is not the one that the engine was certified with (its SHA-256 is {found}, not {sha256}): "
            "put that one back, or build again (python -m build_engines)"
        )
    return content


def _sample(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), "gray").save(file, kind)
    return file.getvalue()


def _positive(parameters: dict[str, str], key: str, default: int) -> int:
    text = parameters.get(key, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"config.pbtxt: parameter {key} must be a whole number above 0, not {text!r}")
    return int(text)
