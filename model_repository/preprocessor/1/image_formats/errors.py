"""What can be said about the bytes of one image."""

from enum import IntEnum


class Status(IntEnum):
    """Why an image was or was not used; the values of the tensor `IMAGE_STATUS`."""

    OK = 0
    EMPTY = 1
    UNSUPPORTED = 2
    CORRUPT = 3
    TOO_LARGE = 4


class ImageError(Exception):
    """These bytes are not a usable image; `status` says why, the text is for logs."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


MAX_SIDE = 65_535  # of a JPEG, and of most formats; a picture of one row costs far more than its pixels say


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise ImageError unless a picture of this size, taken from a header, may be decoded."""
    if width < 1 or height < 1:
        raise ImageError(Status.CORRUPT, f"{width} × {height} pixels")
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise ImageError(Status.TOO_LARGE, f"{width} × {height} pixels, more than {max_pixels} or {MAX_SIDE} a side")
