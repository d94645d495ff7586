"""What libtiff finds wrong: Pillow lets some of it pass, and libtiff itself would print it."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from PIL import Image

from .errors import ImageError, Status

_thread = threading.local()


def _on_error(module: bytes, text: bytes, values: int) -> None:
    _thread.said = text


_handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)(_on_error)  # of tiffio.h
with contextlib.suppress(AttributeError, OSError):  # a Pillow without libtiff, or linked in a way unheard of
    _set_handler = ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler  # type: ignore[attr-defined]  # Pillow's C part
    _set_handler.argtypes, _set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
    _set_handler(ctypes.cast(_handler, ctypes.c_void_p))


@contextlib.contextmanager
def no_tiff_errors() -> Iterator[None]:
    """ImageError if libtiff reports an error in this thread meanwhile, whatever becomes of it."""
    _thread.said = None
    yield
    if _thread.said is not None:
        raise ImageError(Status.CORRUPT, f"libtiff: {_thread.said.decode(errors='replace')}")
