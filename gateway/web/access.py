"""Who asks, by a request's headers and connection; whoever may not is refused before the body is read."""

from __future__ import annotations

from starlette.requests import Request

from gateway.access import Caller
from gateway.access.callers import Network, identity_of
from gateway.access.keys import Keys
from gateway.errors import RateLimited, Unauthorized
from gateway.observe import metrics
from gateway.web.body import drain
from gateway.web.gate import Gate

_NO_KEY = "Send an API key: Authorization: Bearer tg_…, or X-API-Key: tg_…."
_UNKNOWN = "This API key is not known here."
_EXPIRED = "This API key has expired."
_SEVERAL = "The request has two different API keys."


async def known_caller(request: Request, gate: Gate) -> Caller:
    """Who asks. Every route under /v1 begins with it or with `counted_caller`; raises `Unauthorized`.

    Two plain calls: as dependencies of the framework they would cost ten times as much.
    """
    if gate.keys is None:
        return Caller(_address(request, gate.proxies))
    try:
        caller = _of_key(request, gate.keys)
    except Unauthorized:
        metrics.REJECTED.labels("unauthorized").inc()
        await drain(request, gate.settings)
        raise
    request.scope["state"]["key"] = caller.key  # for the access log
    return caller


def _address(request: Request, proxies: tuple[Network, ...]) -> str:
    forwarded = request.headers.getlist("x-forwarded-for") if proxies else ()
    return identity_of(request.client.host if request.client else "", forwarded, proxies)


def _of_key(request: Request, keys: Keys) -> Caller:
    sent = {value.strip() for value in request.headers.getlist("x-api-key")}
    for value in request.headers.getlist("authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer":
            sent.add(credentials.strip())
    if len(sent) != 1:
        raise Unauthorized(_SEVERAL if sent else _NO_KEY)
    entry = keys.find(sent.pop())
    if entry is None:
        raise Unauthorized(_UNKNOWN)
    if keys.has_expired(entry):
        raise Unauthorized(_EXPIRED)
    models = None if entry.models is None else frozenset(entry.models)
    return Caller(f"key:{entry.id}", entry.name, models)


async def counted_caller(request: Request, gate: Gate) -> Caller:
    """The same for a route that asks Triton: its first image is counted here, the others by the route.

    Raises `RateLimited`, too.
    """
    caller = await known_caller(request, gate)
    try:
        await gate.rates.enter(caller.identity)
    except RateLimited:
        await drain(request, gate.settings)
        raise
    return caller
