"""A request's body → files and parameters, in the three forms of the contract, within the caps.

Everything is parsed while it streams in; nothing is written to disk, and no more is kept than the caps allow.
A framework's form parser would do neither: it spools files to disk and decides by a file name what a file is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import unquote_to_bytes

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)
from starlette.requests import Request

from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    ClientLeft,
    InvalidParameter,
    ItemProblem,
    MalformedRequest,
    MissingImage,
    Overloaded,
    RequestError,
    TooManyImages,
    TooManyTexts,
    UnsupportedEncoding,
)
from gateway.fetch import Address, Content
from gateway.settings import Settings
from gateway.web.documents import Document, read_document, stands_more_than
from gateway.web.parameters import one_value_each
from gateway.web.schemas import ImageInput, ImagesRequest

IMAGE_FIELDS = frozenset({"files", "file", "files[]", "image", "images"})
MAX_TEXT_BYTES = 1024
MAX_OTHER_PARTS = 64
MAX_COMMAS_AN_ITEM = 16  # one or two are usual, and an address may hold some
DRAIN_BYTES = 1024 * 1024
DRAIN_S = 1.0


@dataclass(frozen=True)
class File:
    """One image as sent: its cleaned name, and its bytes, where they are, or why there are none."""

    filename: str | None
    content: Content


@dataclass(frozen=True)
class Upload:
    """All images of a request, in order, and its parameters as text; `hint` is for a caller without a usable one."""

    files: list[File]
    parameters: dict[str, str] = field(default_factory=dict)
    hint: str = ""


async def read_upload(
    request: Request, settings: Settings, grow: Callable[[int], None], kind: type[ImagesRequest]
) -> Upload:
    """The whole body; `grow` is told of every chunk's bytes before they are kept. `kind` names the parameters.

    Raises a `RequestError`, `Overloaded` (by `grow`), or `ClientLeft` when the caller went away in the middle.
    """
    body = _Body(request, settings, grow)
    async with _drained_if_refused(body):
        upload = await _read(request, body, settings, kind)
    query = [(name, value) for name, value in request.query_params.multi_items() if name in kind.model_fields]
    return replace(upload, parameters=one_value_each([*query, *upload.parameters.items()]))


async def read_json(
    request: Request, settings: Settings, grow: Callable[[int], None], kind: type[Document], most: int
) -> Document:
    """A body that can only be JSON, with at most about `most` items; the same rules and errors as `read_upload`."""
    body = _Body(request, settings, grow)
    async with _drained_if_refused(body):
        _check_encoding(request)
        content = await body.all()
        if _has_more_elements(content, MAX_COMMAS_AN_ITEM * (most + 1)):
            raise TooManyTexts(f"One request may hold {most} texts; this document has more parts than that.")
        return read_document(content, kind)


@asynccontextmanager
async def _drained_if_refused(body: _Body) -> AsyncIterator[None]:
    try:
        yield
    except (RequestError, Overloaded):
        await body.drain()
        raise


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _has_more_elements(content: bytes, most: int) -> bool:
    """Whether there are more than so many commas, outside of strings: each stands for an element."""
    return stands_more_than(most, b",", content) and _STRING.sub(b"", content).count(b",") > most


async def drain(request: Request, settings: Settings) -> None:
    """For a refusal before the body was looked at, the same as after one in the middle of it."""
    await _Body(request, settings, lambda size: None).drain()


def _check_encoding(request: Request) -> None:
    encodings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    if {encoding.strip() for encoding in encodings} - {"", "identity"}:
        raise UnsupportedEncoding("Send the body as it is, without a Content-Encoding.")
    if request.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise UnsupportedEncoding(
            "Send the body in chunks or with its length, and without any other Transfer-Encoding."
        )


async def _read(request: Request, body: _Body, settings: Settings, kind: type[ImagesRequest]) -> Upload:
    _check_encoding(request)
    types = request.headers.getlist("content-type") or [""]
    if len(set(types)) > 1:
        raise MalformedRequest("The request has two different Content-Types.")
    media_type, options = parse_options_header(types[0])
    if media_type == "multipart/form-data":
        fields = frozenset(kind.model_fields) - {"images"}
        return await _read_multipart(body, options.get("boundary", ""), _Form(settings, fields))
    if media_type == "application/json":
        return _read_images(await body.all(), settings, kind)
    content = await body.all()
    if not content:
        raise MissingImage("The body is empty: send an image, a form with images, or JSON.")
    known = media_type in ("", "application/octet-stream") or media_type.startswith("image/")
    return Upload([File(None, content)], hint="" if known else _TAKEN_FOR_AN_IMAGE.format(media_type[:64]))


_TAKEN_FOR_AN_IMAGE = (
    " The body was taken for one image, because its Content-Type is {!r}: "
    "send a form as multipart/form-data, and JSON as application/json."
)


class _Body:
    """The body's chunks, counted against the cap and timed against silence."""

    def __init__(self, request: Request, settings: Settings, grow: Callable[[int], None]) -> None:
        self._request = request
        self._limit = settings.max_body_bytes
        self._idle_s = settings.body_idle_timeout_s
        self._slowest = settings.body_min_bytes_per_s
        self._grow = grow
        self._left = True
        self._waits = request.headers.get("expect", "").lower() == "100-continue"

    async def chunks(self) -> AsyncIterator[bytes]:
        declared = self._request.headers.get("content-length", "")
        received = int(declared) if declared.isdigit() else 0
        if received > self._limit:
            raise self._too_large()
        received, start = 0, time.monotonic()
        while self._left:
            chunk = await self._next(self._idle_s)
            received += len(chunk)
            if received > self._limit:
                raise self._too_large()
            seconds = time.monotonic() - start
            if self._left and seconds > self._idle_s and received < self._slowest * seconds:
                raise BodyTimeout(f"The body comes at less than {self._slowest} bytes a second.")
            if chunk:
                self._grow(len(chunk))
                yield chunk

    async def all(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def drain(self) -> None:
        """After a refusal: lets a small rest pass, so that the caller gets to read why; else says it is unread.

        A caller that waits to be told to send its body is not told.
        """
        drained, end = 0, time.monotonic() + DRAIN_S
        try:
            while self._left and not self._waits and drained < DRAIN_BYTES:
                drained += len(await self._next(max(0.0, end - time.monotonic())))
        except (BodyTimeout, ClientLeft):
            pass
        self._request.scope["state"]["body_unread"] = self._left

    async def _next(self, patience_s: float) -> bytes:
        self._waits = False
        receiving = asyncio.ensure_future(self._request.receive())
        try:  # not wait_for: up to Python 3.11 it forgets a cancellation that comes together with the message
            done, _ = await asyncio.wait({receiving}, timeout=patience_s)
        finally:
            receiving.cancel()
        if not done:
            raise BodyTimeout(f"No byte of the body came for {patience_s:g} seconds.")
        message = receiving.result()
        if message["type"] == "http.disconnect":
            raise ClientLeft("The caller left.")
        self._left = message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than the limit of {self._limit} bytes.")


async def _read_multipart(body: _Body, boundary: str, form: _Form) -> Upload:
    if not boundary:
        raise MalformedRequest("The Content-Type of the form has no boundary.")
    try:
        parser = _Parser(boundary, header_charset="latin-1", max_segment_count=form.most_parts)
        with parser:  # leaving it checks that the last boundary was seen
            async for chunk in _from_boundary(body.chunks(), parser.boundary):
                for event in parser.parse(chunk):
                    form.take(event)
    except ParserLimitReached as error:
        raise MalformedRequest("The form has too many parts, or a part's headers are too long.") from error
    except MultipartError as error:
        raise MalformedRequest("The form is not well formed, or was cut short.") from error
    return form.upload()


# The parser judges what stands before the first boundary, and bare line feeds in headers, by what has arrived
# so far. A form must not mean one thing or another by where the network cuts it: both are refused.


async def _from_boundary(chunks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """The same bytes, the first piece long enough to show that the form begins with its boundary."""
    head: bytes | None = b""
    async for chunk in chunks:
        if head is None:
            yield chunk
            continue
        head += chunk
        if len(head) >= len(boundary) + 6:  # CRLF, two dashes, the boundary, CRLF or two dashes
            if not head.removeprefix(b"\r\n").startswith(b"--" + boundary):
                raise MalformedRequest("The form does not begin with its boundary.")
            yield head
            head = None
    if head:
        yield head


class _Parser(PushMultipartParser):  # type: ignore[misc]  # the library has no types
    def _on_segment_headerline(self, line: bytes) -> None:
        if b"\n" in line:
            raise MultipartError("A line feed in a header.")
        super()._on_segment_headerline(line)


class _Form:
    """Collects the parser's events: a part's headers, its bytes, its end (None)."""

    def __init__(self, settings: Settings, fields: frozenset[str]) -> None:
        self.most_parts = settings.max_images + MAX_OTHER_PARTS
        self._settings = settings
        self._fields = fields
        self._files: list[File] = []
        self._parameters: list[tuple[str, str]] = []
        self._strangers: list[str] = []
        self._part: MultipartSegment | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, event: MultipartSegment | bytes | None) -> None:
        if isinstance(event, MultipartSegment):
            self._part, self._pieces, self._size = event, [], 0
            if event.name in IMAGE_FIELDS and len(self._files) == self._settings.max_images:
                raise self.too_many()
        elif event is not None:
            self._size += len(event)
            limit = self._settings.max_file_bytes if self._is_image() else MAX_TEXT_BYTES
            if self._size <= limit:
                self._pieces.append(event)
            else:
                self._pieces.clear()  # it will be refused: keep nothing of it
        else:
            self._end_part()

    def _is_image(self) -> bool:
        return self._part is not None and self._part.name in IMAGE_FIELDS

    def _end_part(self) -> None:
        assert self._part is not None
        name = self._part.name or ""
        if self._is_image():
            content: bytes | ItemProblem = b"".join(self._pieces)
            if self._size > self._settings.max_file_bytes:
                content = ItemProblem(
                    "file_too_large",
                    f"The file has {self._size} bytes; the limit is {self._settings.max_file_bytes}.",
                )
            self._files.append(File(_filename(self._part), content))
        elif name in self._fields:
            if self._size > MAX_TEXT_BYTES:
                raise InvalidParameter(f"The field {name} is too long.")
            self._parameters.append((name, b"".join(self._pieces).decode("utf-8", "replace").strip()))
        elif self._part.filename:
            self._strangers.append(name)
        self._part = None

    def too_many(self) -> TooManyImages:
        return TooManyImages(f"One request may hold {self._settings.max_images} images.")

    def upload(self) -> Upload:
        names = ", ".join(sorted(IMAGE_FIELDS))
        # A browser sends an empty, nameless part for a file field in which nothing was chosen.
        if not any(file.content or file.filename for file in self._files):
            raise MissingImage(f"The form has no image: name its parts one of {names}.")
        if self._strangers:
            raise InvalidParameter(
                f"A file part is named {self._strangers[0][:64]!r}: name image parts one of {names}."
            )
        return Upload(self._files, one_value_each(self._parameters))


_EXTENDED = re.compile(r"filename\*\s*=\s*(?:utf-8|iso-8859-1)'[^']*'([^;\s]+)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_NAME = 255


def _filename(part: MultipartSegment) -> str | None:
    """The last component of the part's `filename*` or `filename`, without control characters; None if empty."""
    extended = _EXTENDED.search(part.header("Content-Disposition", "") or "")
    raw = unquote_to_bytes(extended[1]) if extended else (part.filename or "").encode("latin-1", "replace")
    name = _CONTROL.sub("", raw.decode("utf-8", "replace"))
    return re.split(r"[/\\]", name)[-1].strip()[:MAX_NAME] or None


def _read_images(content: bytes, settings: Settings, kind: type[ImagesRequest]) -> Upload:
    # Every element of a document costs far more than its bytes, in memory and in the time that nobody else is served.
    if stands_more_than(MAX_COMMAS_AN_ITEM * (settings.max_images + 1), b",", content):
        raise TooManyImages(
            f"One request may hold {settings.max_images} images; this document has more parts than that."
        )
    wanted = read_document(content, kind)
    if not wanted.images:
        raise MissingImage("The list `images` is empty.")
    if len(wanted.images) > settings.max_images:
        raise TooManyImages(f"One request may hold {settings.max_images} images.")
    files = [File(None, _content(image)) for image in wanted.images]
    return Upload(files, wanted.parameters())


def _content(image: ImageInput) -> Content:
    return Address(image.url) if image.url is not None else decode_base64(image.data or "")


_NOT_BASE64 = ItemProblem("invalid_base64", "The data is not base64.")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def decode_base64(text: str) -> bytes | ItemProblem:
    """Standard or URL-safe base64, padded or not, in lines or not, with or without a `data:` prefix."""
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            return _NOT_BASE64
    try:
        digits = text.encode("ascii").translate(_URL_SAFE, b" \t\r\n").rstrip(b"=")
        return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return _NOT_BASE64
