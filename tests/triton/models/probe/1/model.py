"""A classifier whose every output is known: the mean R, G, B of the picture's four quadrants, 0 to 255.

A picture whose top left quadrant is (13, 13, s) makes the whole batch sleep s/100 seconds; (14, 14, 14) there
gives NaN.
"""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # lives in Triton


class TritonPythonModel:
    """Triton's entry point."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        responses = []
        for request in requests:
            pixels = pb_utils.get_input_tensor_by_name(request, "PREPROCESSED_IMAGE").as_numpy().astype(np.float32)
            half = pixels.shape[1] // 2
            parts = (pixels[:, :half, :half], pixels[:, :half, half:], pixels[:, half:, :half], pixels[:, half:, half:])
            means = np.concatenate([part.mean(axis=(1, 2)) for part in parts], axis=1)
            for row in means:
                if tuple(row[:2]) == (13, 13):
                    time.sleep(row[2] / 100)
                if tuple(row[:3]) == (14, 14, 14):
                    row[:] = np.nan
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CLASSIFICATION", means.astype(np.float32))]))
        return responses
