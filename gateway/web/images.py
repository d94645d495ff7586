"""What every route about images begins with."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from gateway.access import Caller
from gateway.observe.stages import Stage
from gateway.web.body import Upload, read_upload
from gateway.web.gate import Gate
from gateway.web.schemas import ImagesRequest


async def read_images(
    request: Request, gate: Gate, caller: Caller, grow: Callable[[int], None], kind: type[ImagesRequest]
) -> Upload:
    """The body, and its images counted for the caller's rates. Raises what `read_upload` does, and `RateLimited`."""
    with Stage("read") as read:
        upload = await read_upload(request, gate.settings, grow, kind)
        read.note({"tidegate.images": len(upload.files)})
    await gate.rates.add(caller.identity, len(upload.files))
    return upload
