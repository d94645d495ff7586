"""One request to a gateway, and what its answer means. The only module that speaks HTTP."""

from __future__ import annotations

import json
import os
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, NoReturn

import anyio
import httpx

from tidegate.errors import GatewayAway, Refused, TooLarge, Unanswered
from tidegate.wording import code as code_in
from tidegate.wording import is_name, sentence

MOST_ANSWER_BYTES = 64 * 1024 * 1024
MOST_VALUES = 1_000_000
"""Of an image's features. A row without features takes as much room in an .npz as one with them."""
CONNECT_S = 10.0
_AGAIN = frozenset({429, 502, 503, 504})
_FOREVER_S = 1e9


@dataclass(frozen=True)
class Model:
    """Who answered: its name, its version, and how many values it gives for an image."""

    name: str
    version: str
    dim: int


@dataclass(frozen=True)
class Answer:
    """`results` has one entry for each image, in order, as the contract has it. No `model`: no image could be used."""

    model: Model | None
    results: Sequence[Mapping[str, Any]]


class Client:
    """A gateway at `url`, for one event loop; use it as an async context manager.

    `timeout_s` is for a whole request, from its first byte to the last of the answer.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 60.0, connections: int = 64) -> None:
        self.url = url
        self._timeout_s = timeout_s
        headers = {"Accept-Encoding": "identity", "User-Agent": "tidegate"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            verify=url.startswith("https:"),  # all the authorities are read only where they are of use
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def __aenter__(self) -> Client:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._http.__aexit__(kind, error, traceback)

    async def look(self) -> None:
        """Raises `GatewayAway` when nobody at all answers, and `Refused` for a certificate that is not trusted."""
        try:
            await self._exchange("GET", "/livez", None, {})
        except Unanswered as error:
            raise GatewayAway(
                f"No gateway answers at {self.url} ({error.detail}): start one with `tidegate up`, or name yours with "
                "--url."
            ) from error

    async def is_well(self) -> bool:
        """Whether the gateway says that it can serve; one that cannot be asked that is well if it answers."""
        try:
            status, _, _ = await self._exchange("GET", "/readyz", None, {})
        except Unanswered:
            return False
        return status < 500

    async def ask(self, route: str, images: Sequence[bytes], fields: Mapping[str, str]) -> Answer:
        """One request with all `images`, encoded files, and text `fields`.

        Raises `TooLarge` when the gateway takes less in one request, `Unanswered` when it may be answered at another
        time, `Refused` when every other request would be answered in the same way, or the answer is no gateway's.
        """
        boundary = secrets.token_hex(16)
        body = _form(images, fields, boundary)
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        status, headers, content = await self._exchange("POST", route, body, kind)
        document = _read(content)
        if status == 200:
            return self._answer(document, len(images))
        code = code_in(document["code"]) if document.get("code") else f"http_{status}"
        detail = sentence(document.get("detail"), f"The answer was HTTP status {status}")
        if status == 422 and code.startswith("no_usable_"):
            return Answer(None, self._results(document, len(images)))
        if status == 413:
            raise TooLarge(code if code != "http_413" else "body_too_large", detail)
        if status in _AGAIN:
            raise Unanswered(code, detail, retry_after=_retry_after(headers.get("Retry-After")))
        if status >= 500 or status == 408:  # the same request is not sent again, but another one may fare better
            raise Unanswered(code, detail, again=False)
        raise Refused(f"The gateway at {self.url} refuses such requests: {code}: {detail}")

    async def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, httpx.Headers, bytes]:
        try:
            with anyio.fail_after(self._timeout_s):
                async with self._http.stream(method, self.url + path, content=body, headers=headers) as response:
                    content = bytearray()
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > MOST_ANSWER_BYTES:
                            raise Unanswered("bad_answer", f"The answer has more than {MOST_ANSWER_BYTES} bytes.")
                    return response.status_code, response.headers, bytes(content)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise Unanswered("timeout", f"There was no answer within {self._timeout_s:g} s.") from error
        except httpx.TransportError as error:
            if _is_untrusted(error):
                raise Refused(
                    f"The certificate of {self.url} is not trusted: name the file of its authority in SSL_CERT_FILE."
                ) from error
            raise Unanswered("connection_lost", _words(error)) from error

    def _answer(self, document: Mapping[str, Any], images: int) -> Answer:
        model, dim = document.get("model"), document.get("dim")
        if not isinstance(model, dict) or not is_name(model.get("name")) or not is_name(model.get("version")):
            self.no_gateway("it names no model with a version")
        if type(dim) is not int or not 1 <= dim <= MOST_VALUES:  # true is an int, too
            self.no_gateway(f"its dim is no number from 1 to {MOST_VALUES:,}")
        return Answer(Model(model["name"], model["version"], dim), self._results(document, images))

    def _results(self, document: Mapping[str, Any], images: int) -> list[Mapping[str, Any]]:
        results = document.get("results")
        if not isinstance(results, list) or len(results) != images:
            self.no_gateway("it has not one result for each image")
        if any(not isinstance(each, dict) or each.get("index") != place for place, each in enumerate(results)):
            self.no_gateway("its results are not in the order of the images")
        return results

    def no_gateway(self, why: str) -> NoReturn:
        """Raises `Refused`: an answer came that no gateway gives, so that nothing in it can be trusted."""
        raise Refused(f"What answers at {self.url} does not answer as a Tidegate gateway does: {why}.")


def _form(images: Sequence[bytes], fields: Mapping[str, str], boundary: str) -> bytes:
    """The file names are numbers: what files are called here is nobody else's business."""
    pieces = []
    for name, value in fields.items():
        pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    for number, image in enumerate(images):
        head = f'Content-Disposition: form-data; name="files"; filename="{number}"'
        pieces += [f"--{boundary}\r\n{head}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(), image, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces)


def _read(content: bytes) -> Mapping[str, Any]:
    """A JSON object; empty for anything else, as a proxy may send."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _retry_after(value: str | None) -> float | None:
    """Seconds from a number or a date (RFC 9110); None for anything else."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return min(_FOREVER_S, float(value))
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        return None
    return min(_FOREVER_S, max(0.0, (when - datetime.now(timezone.utc)).total_seconds()))


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _words(error: httpx.TransportError) -> str:
    """The system's own word, such as Connection refused, which is below what the libraries say."""
    words, below = str(error) or type(error).__name__, error.__cause__ or error.__context__
    while below is not None:
        if isinstance(below, OSError) and below.errno:
            words = os.strerror(below.errno) if below.errno > 0 else str(below.strerror)  # below zero: of DNS
        below = below.__cause__ or below.__context__
    return sentence(words, type(error).__name__)
