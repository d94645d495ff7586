"""Triton's Python backend: encoded image files → PREPROCESSED_IMAGE and IMAGE_STATUS.

Tensors and status codes are in README.md of the model repository; the pixels are `imaging.py`'s work.
"""

import hashlib
import importlib.util
import io
import json
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # lives in Triton's backend folder
from PIL import Image

if TYPE_CHECKING:
    import guard
    import imaging
else:

    def _beside(name: str) -> Any:
        """By path: the name could be anyone's on the path that Triton's stub gives us."""
        spec = importlib.util.spec_from_file_location(f"tidegate_{name}", Path(__file__).with_name(f"{name}.py"))
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    guard, imaging = _beside("guard"), _beside("imaging")

# Of one picture: 64 megapixels, as the HTTP contract says, and what those cost at most, docs/limits.md.
DEFAULT_MAX_PIXELS = 64_000_000
DEFAULT_CPU_SECONDS = 5
DEFAULT_MEMORY_MIB = 1536


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
        size = self._recipe.size
        (pixels,) = (output for output in config["output"] if output["name"] == "PREPROCESSED_IMAGE")
        if [int(side) for side in pixels["dims"]] != [size, size, 3]:
            raise ValueError(f"config.pbtxt promises {pixels['dims']}, {parameters['preprocess']} makes {size}")
        threads = _positive(parameters, "threads", len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(threads, "preprocess")
        self._apart = ThreadPoolExecutor(threads, "preprocess-apart")  # they only wait for the decoder's processes
        self._max_pixels = _positive(parameters, "max_pixels", DEFAULT_MAX_PIXELS)
        self._guard = guard.Guard(
            recipe.decode(),
            size,
            max_pixels=self._max_pixels,
            cpu_seconds=_positive(parameters, "cpu_seconds", DEFAULT_CPU_SECONDS),
            memory=_positive(parameters, "memory_mib", DEFAULT_MEMORY_MIB) << 20,
        )
        for kind in ("JPEG", "PNG"):  # else libraries that do not fit together would pass for corrupt images
            imaging.preprocess(_sample(kind), self._recipe, max_pixels=self._max_pixels)
        if (status := self._guard.preprocess(memoryview(_sample("PNG")))[0]) != imaging.Status.OK:
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
        image = file.data[:length]  # a view: neither are the bytes copied, nor does a decoder see what lies behind
        if not imaging.costs_little(image):
            answer.late.append(self._apart.submit(self._preprocess_apart, image, answer, row))
            return
        try:
            answer.pixels[row] = imaging.preprocess(image, self._recipe, max_pixels=self._max_pixels)
        except imaging.ImageError as error:
            answer.statuses[row] = error.status

    def _preprocess_apart(self, image: memoryview, answer: "_Answer", row: int) -> None:
        try:
            answer.statuses[row], pixels = self._guard.preprocess(image)
        except guard.Ended as end:
            pb_utils.Logger.log_warn(f"preprocessor: decoding a file of {len(image)} bytes was ended by {end}")
            answer.statuses[row] = imaging.Status.CORRUPT
        else:
            if pixels is not None:
                answer.pixels[row] = pixels


class _Answer:
    """The outputs of one request, while they are being filled: by `work`, which may leave some of it to `late`."""

    def __init__(self, request: Any, images: int, size: int) -> None:
        self._request = request  # its memory is what the images are read from
        self.pixels = np.zeros((images, size, size, 3), np.uint8)
        self.statuses = np.full((images, 1), imaging.Status.OK, np.int32)
        self.work: list[Future[None]] = []
        self.late: list[Future[None]] = []

    def now_or_later(self) -> "Any | None":
        """The response; or None, and it is sent when the last picture is done."""
        wait(self.work)
        if not self.late:
            return self._response()
        sender = self._request.get_response_sender()
        left = iter(self.late[1:])  # whoever finds none left is the last

        def one_is_done(_: "Future[None]") -> None:
            if next(left, None) is None:
                sender.send(self._response(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        for future in self.late:
            future.add_done_callback(one_is_done)
        return None

    def _response(self) -> Any:
        try:
            for future in (*self.work, *self.late):
                future.result()
        except Exception as error:  # a mistake of ours, as images raise ImageError only; it costs one request
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
