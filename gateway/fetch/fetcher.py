"""Fetches images: the one module that speaks HTTP as a client. It is imported only where `TIDEGATE_ALLOW_URLS` is set.

Every connection of this module begins in `_Network`, which resolves a name once, has all of its addresses checked, and
connects to one of these; TLS and `Host` go on using the name. There is one pool for each hop, so that no connection
outlives the decision that let it through. httpcore follows no redirect, decodes no body, and knows no proxy, cookie or
netrc; httpx would have to be told.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing
from ipaddress import ip_address

import httpcore
import idna  # noqa: F401  # the guard uses it for names that are not ASCII

from gateway import __version__
from gateway.admission import Deadline
from gateway.errors import BodyTooLarge, DeadlineExceeded, ItemProblem
from gateway.fetch import Address, Content
from gateway.fetch.guard import Guard, Location, NotFetched
from gateway.images import HEAD_BYTES, ImageLimits, refused_kind
from gateway.observe import metrics
from gateway.observe.stages import Stage

log = logging.getLogger(__name__)
logging.getLogger("httpcore").setLevel(logging.INFO)  # its debug lines hold headers, such as signed addresses

AT_ONCE = 64
"""Fetches at one time in one worker."""
AT_ONCE_OF_A_REQUEST = 16
ATTEMPTS = 3
"""Addresses of one host that are tried, one after the other."""
ATTEMPT_S = 1.0
"""Seconds for which an address may be silent when there is another one to try."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})

OUTCOMES = ("ok", "url_forbidden", "url_fetch_failed", "file_too_large", "unsupported_image", "cancelled")
"""Of a fetch, in the metrics. `cancelled`: its request had failed, or its deadline had passed, before it ended."""

FAILED = ItemProblem("url_fetch_failed", "The image could not be fetched.")
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,  # of which ssl.SSLError is one
    asyncio.TimeoutError,
)

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""A name → its IP addresses; none for a name that has none."""

_resolvers = ThreadPoolExecutor(AT_ONCE, "resolve")  # of their own: a name server that is slow stops nobody else


async def resolve(host: str) -> list[str]:
    """What the system's resolver says, in its order."""
    try:
        found = await asyncio.get_running_loop().run_in_executor(
            _resolvers, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    except (OSError, UnicodeError):
        return []
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Fetcher:
    """Fetches the images of all requests of one worker.

    `timeout_s` and `max_redirects` hold for one image, `max_bytes` for all images of a request.
    """

    def __init__(
        self,
        guard: Guard,
        limits: ImageLimits,
        *,
        max_bytes: int,
        timeout_s: float,
        max_redirects: int,
        resolve: Resolve = resolve,
        network: httpcore.AsyncNetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = guard
        self._limits = limits
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._resolve = resolve
        self._network = network or httpcore.AnyIOBackend()
        self._ssl_context = ssl_context or httpcore.default_ssl_context()
        self._places = asyncio.Semaphore(AT_ONCE)
        for outcome in OUTCOMES:
            metrics.URL_FETCHES.labels(outcome)

    async def fetch(
        self, contents: Sequence[Content], deadline: Deadline, grow: Callable[[int], None]
    ) -> list[bytes | ItemProblem]:
        """All that `gateway.fetch.Fetch` promises."""
        addresses = sum(isinstance(content, Address) for content in contents)
        if not addresses:
            return [content for content in contents if not isinstance(content, Address)]
        with Stage("fetch") as stage:
            stage.note({"tidegate.images": addresses})
            return await self._fetch_all(contents, deadline, self._capped(grow))

    def _capped(self, grow: Callable[[int], None]) -> Callable[[int], None]:
        """`grow` within what a request's body may have: the same images in a form would be refused, too."""
        left = self._max_bytes

        def take(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise BodyTooLarge(f"The images together are larger than the limit of {self._max_bytes} bytes.")
            grow(size)

        return take

    async def _fetch_all(
        self, contents: Sequence[Content], deadline: Deadline, take: Callable[[int], None]
    ) -> list[bytes | ItemProblem]:
        remaining, places = deadline.remaining(), asyncio.Semaphore(AT_ONCE_OF_A_REQUEST)

        async def content_of(content: Content) -> bytes | ItemProblem:
            if not isinstance(content, Address):
                return content
            async with places, self._places:
                return await self._fetch(content, take)

        fetches = [asyncio.ensure_future(content_of(content)) for content in contents]
        try:
            return await asyncio.wait_for(asyncio.gather(*fetches), remaining)
        except asyncio.TimeoutError as late:
            raise DeadlineExceeded("The deadline passed before all images were fetched.") from late
        finally:
            for fetch in fetches:
                fetch.cancel()
            await asyncio.gather(*fetches, return_exceptions=True)  # nothing may `grow` once the request has ended

    async def _fetch(self, address: Address, take: Callable[[int], None]) -> bytes | ItemProblem:
        """One image; counted, and logged when it failed, with nothing of its address but the host."""
        hops: list[Location] = []
        content: bytes | ItemProblem
        outcome, reason = "cancelled", ""
        try:
            content = await asyncio.wait_for(self._follow(address, hops, take), self._timeout_s)
            outcome = "ok"
        except NotFetched as why:
            content, reason = why.problem, why.reason
            outcome = content.code
        except _FAILURES as failure:
            content, reason = FAILED, type(failure).__name__
            outcome = content.code
        finally:
            metrics.URL_FETCHES.labels(outcome).inc()
        if reason:  # a request may hold hundreds of addresses: not a line for each, unless it is asked for
            host = hops[-1].host if hops else "-"
            log.debug("An image was not fetched", extra={"host": host, "code": outcome, "reason": reason})
        return content

    async def _follow(self, address: Address, hops: list[Location], take: Callable[[int], None]) -> bytes:
        """From hop to hop until there is a body; each is added to `hops` before it is asked."""
        location = self._guard.locate(address.url)
        while len(hops) <= self._max_redirects:
            hops.append(location)
            network = _Network(self._guard, self._resolve, self._network)
            async with aclosing(network), self._pool(network) as pool, _asked(pool, location) as answer:
                if answer.status in REDIRECTS and (target := _header(answer, b"location")) is not None:
                    location = self._guard.locate(target.decode("utf-8", "replace"), location)
                    continue
                if why := _unusable(answer):
                    # Of a network inside, nobody learns more than that it did not work.
                    raise NotFetched(FAILED if network.inside else ItemProblem("url_fetch_failed", why), why)
                return await self._body(answer, take)
        raise NotFetched(FAILED, "too many redirects")

    def _pool(self, network: _Network) -> httpcore.AsyncConnectionPool:
        return httpcore.AsyncConnectionPool(self._ssl_context, max_connections=1, network_backend=network)

    async def _body(self, answer: httpcore.Response, take: Callable[[int], None]) -> bytes:
        """The whole body; given up as soon as it is seen to be too large, or no picture of a kind that is taken."""
        limit = self._limits.max_file_bytes
        too_large = NotFetched(ItemProblem("file_too_large", f"The file has more than {limit} bytes."), "too large")
        declared = _header(answer, b"content-length") or b""
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        content, judged = bytearray(), False
        async for chunk in answer.aiter_stream():
            take(len(chunk))
            content += chunk
            if len(content) > limit:
                raise too_large
            if not judged and len(content) >= HEAD_BYTES:
                judged = True
                if problem := refused_kind(bytes(content[:HEAD_BYTES])):
                    raise NotFetched(problem, "not a picture")
        return bytes(content)


class _Network(httpcore.AsyncNetworkBackend):
    """The way out for one hop: connects to an address that the guard has let through, and to nothing else."""

    def __init__(self, guard: Guard, resolve: Resolve, network: httpcore.AsyncNetworkBackend) -> None:
        self._guard = guard
        self._resolve = resolve
        self._network = network
        self._stream: httpcore.AsyncNetworkStream | None = None
        self.inside = False
        """Whether it led into a network that is not public and that the operator named."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = self._guard.admit([host] if _is_ip(host) else await self._resolve(host))
        self.inside = any(map(self._guard.is_inside, addresses))
        *others, last = list(dict.fromkeys(addresses))[:ATTEMPTS]
        for address in others:
            try:
                self._stream = await self._network.connect_tcp(str(address), port, ATTEMPT_S)
                return self._stream
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        self._stream = await self._network.connect_tcp(str(last), port)
        return self._stream

    async def aclose(self) -> None:
        """Closes the connection, which httpcore loses sight of when a TLS handshake is cancelled."""
        if self._stream is not None:
            await self._stream.aclose()


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _asked(pool: httpcore.AsyncConnectionPool, location: Location) -> AbstractAsyncContextManager[httpcore.Response]:
    """The answer to a GET, its body not yet read."""
    url = httpcore.URL(scheme=location.scheme, host=location.host, port=location.port, target=location.target)
    headers = [
        ("Host", location.authority),
        ("Accept", "image/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
        ("User-Agent", f"tidegate/{__version__}"),
    ]
    return pool.stream("GET", url, headers=headers)


def _unusable(answer: httpcore.Response) -> str | None:
    if answer.status != 200:
        return f"The server answered with status {answer.status}."
    if (_header(answer, b"content-encoding") or b"identity").lower() != b"identity":
        return "The server answered with a compressed body."
    return None


def _header(answer: httpcore.Response, name: bytes) -> bytes | None:
    return next((value for key, value in answer.headers if key.lower() == name), None)
