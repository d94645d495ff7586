"""`create_app`: the one place where the parts are joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway import __version__
from gateway.access.keys import Keys
from gateway.access.rates import Rates
from gateway.admission import Admission
from gateway.cache import Cache
from gateway.errors import TidegateError
from gateway.fetch import Fetch, fetch_nothing
from gateway.images import ImageLimits
from gateway.inference import Inference
from gateway.inputs import kinds
from gateway.leaving import notice
from gateway.observe import logging as logs
from gateway.observe import metrics
from gateway.settings import Settings, listed, load_settings
from gateway.shadow import Shadow
from gateway.triton import Triton
from gateway.triton.client import Tls, TritonClient
from gateway.triton.discovery import Discovery
from gateway.triton.leash import die_with_parent
from gateway.triton.pool import Pool
from gateway.web import classify, embed, health, models, openai, openapi, page, problems, text
from gateway.web.gate import Gate
from gateway.web.middleware import RequestMiddleware

if TYPE_CHECKING:
    from gateway.observe.tracing import Tracing


CORS: dict[str, Any] = {
    "allow_methods": ["GET", "HEAD", "POST"],
    "allow_headers": ["Authorization", "X-API-Key", "X-Request-ID", "X-Request-Timeout", "traceparent", "tracestate"],
    "expose_headers": ["X-Request-ID", "Server-Timing", "Retry-After", "WWW-Authenticate"],
}
"""What a page of an allowed origin may send and read. No credentials of the browser's own: keys are no cookies."""
TARGET_SHARE = 0.25
"""Of the time for a request, in which what is admitted should be answered: the rest is for what differs."""
FLUSH_S = 5.0
"""Seconds that a worker's end may take for the traces that are left, if its requests may take as long."""


def create_app(settings: Settings | None = None, triton: Triton | None = None) -> FastAPI:
    """A gateway with `settings` (from the environment if none are given) in front of `triton`
    (a gRPC client of `settings.triton_url` if none is given)."""
    settings = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        client = Pool(
            [triton] if triton else [TritonClient(each, _tls(settings)) for each in settings.triton_endpoints]
        )
        discovery = Discovery(
            client,
            settings.default_model,
            settings.probe_interval_s,
            allow_random_weights=settings.allow_random_weights,
        )
        target_s = settings.request_timeout_s * TARGET_SHARE
        admission = Admission(
            settings.max_in_flight_images, settings.max_in_flight_bytes, target_s, len(settings.triton_endpoints)
        )
        limits = ImageLimits(settings.max_file_bytes, settings.max_pixels)
        cache = Cache(settings.cache_bytes) if settings.cache_bytes else None
        shadow = Shadow(client, discovery, admission, settings.request_timeout_s)
        inference = Inference(client, discovery, admission, kinds(limits, settings.max_text_bytes), cache, shadow)
        rates = _rates(settings)
        app.state.gate = Gate(
            settings,
            admission,
            discovery,
            inference,
            _fetch(settings, limits),
            Keys(settings.api_keys_file) if settings.api_keys_file else None,
            rates,
            settings.proxies,
        )
        watch = asyncio.create_task(discovery.watch())
        tracing = _tracing(settings)
        try:
            with notice(settings.shutdown_delay_s) as leaving:
                # for `gateway.web.protocol`, `gateway.web.middleware` and `gateway.web.health`
                yield {"head_timeout_s": settings.head_timeout_s, "tracing": tracing, "leaving": leaving}
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await shadow.close()
            await client.close()
            await rates.close()
            if tracing is not None:
                await tracing.close(min(FLUSH_S, settings.shutdown_grace_s))

    app = FastAPI(
        title="Tidegate",
        version=__version__,
        description="A gate in front of NVIDIA Triton: photos and texts in, labels and features out, none made up.",
        lifespan=lifespan,
        redoc_url=None,
        docs_url="/docs" if settings.docs else None,
        openapi_url="/openapi.json" if settings.docs else None,
        redirect_slashes=False,  # a redirect would make the caller send its photos twice
        # FastAPI's own would be a second span for every request, with its path and query, and log exceptions' texts.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    fault: ASGIApp = problems.fault
    if settings.cors_origins:
        cors = {**CORS, "allow_origins": listed(settings.cors_origins)}
        app.add_middleware(CORSMiddleware, **cors)
        fault = CORSMiddleware(fault, **cors)  # what it answers does not come through the other one
    app.add_middleware(RequestMiddleware, access_log=settings.access_log, fault=fault)
    app.add_exception_handler(TidegateError, problems.on_tidegate_error)
    app.add_exception_handler(HTTPException, problems.on_http_exception)
    for router in _routers(settings):
        app.include_router(router)
        metrics.announce_routes((r.path, r.methods) for r in router.routes if isinstance(r, Route))
    app.openapi = partial(openapi.describe, app, keys=settings.api_keys_file is not None)  # type: ignore[method-assign]  # FastAPI's own way to do it
    return app


def _routers(settings: Settings) -> list[APIRouter]:
    routers = [classify.router, embed.router, text.router, openai.router, models.router, health.router]
    if settings.metrics and settings.metrics_port is None:
        routers.append(health.scrapes)
    if settings.docs:
        routers.append(page.router)
    return routers


def _rates(settings: Settings) -> Rates:
    if not settings.rate_limit:
        return Rates()
    from gateway.access.storage import RedisWindows, parse_limits  # imported only where it is used: the extra `rates`

    limits = parse_limits(settings.rate_limit)
    url = settings.rate_storage
    return Rates(limits, RedisWindows(url.get_secret_value()) if url else None)


def _fetch(settings: Settings, limits: ImageLimits) -> Fetch:
    if not settings.allow_urls:
        return fetch_nothing
    from gateway.fetch.fetcher import Fetcher  # imported only where it is used: it needs the extra `urls`

    return Fetcher(
        settings.guard,
        limits,
        max_bytes=settings.max_body_bytes,
        timeout_s=settings.url_timeout_s,
        max_redirects=settings.url_max_redirects,
    ).fetch


def _tls(settings: Settings) -> Tls | None:
    if settings.triton_tls_ca_file is None:
        return None
    certificate, key = settings.triton_tls_cert_file, settings.triton_tls_key_file
    return Tls(
        settings.triton_tls_ca_file.read_bytes(),
        certificate.read_bytes() if certificate else None,
        key.read_bytes() if key else None,
    )


def _tracing(settings: Settings) -> Tracing | None:
    if settings.traces_endpoint is None:
        return None
    from gateway.observe.tracing import Tracing  # OpenTelemetry is imported only where it is used

    return Tracing(settings.traces_endpoint, settings.traces_sample_ratio)


def worker() -> FastAPI:
    """The factory that each worker process of `tidegate serve` calls."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    if settings.workers > 1:
        die_with_parent()
    return create_app(settings)
