"""Liveness, readiness, metrics."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from gateway.errors import Overloaded, UpstreamUnavailable
from gateway.observe import metrics
from gateway.web import openapi, schemas
from gateway.web.gate import GateDep
from gateway.web.problems import problem_of

READY_S = 2.5
"""Seconds after which what does not answer is not ready: an orchestrator's own probe should not time out first."""
router = APIRouter(tags=["operations"])
scrapes = APIRouter(tags=["operations"])


@router.get("/livez", summary="Is this process alive", responses=openapi.responses(openapi.JSON, {"status": "ok"}))
async def livez() -> schemas.Health:
    """Asks nobody: a Triton that is down is no reason to restart the gateway."""
    return schemas.Health(status="ok")


@router.get(
    "/readyz",
    summary="Can it classify",
    response_model=schemas.Health,
    responses=openapi.responses(
        openapi.JSON, {"status": "ready"}, "overloaded", "upstream_unavailable", "model_not_ready"
    ),
)
async def readyz(request: Request, gate: GateDep) -> Response:
    """200 when a real, tiny inference through Triton succeeded within the last second, and no end is near."""
    if request.state.leaving.is_set():
        return problem_of(Overloaded("This gateway is about to end: ask another one.", retry_after=1))
    try:
        readiness = await asyncio.wait_for(gate.discovery.check(), READY_S)
    except asyncio.TimeoutError:
        return problem_of(UpstreamUnavailable("The inference server does not answer."))
    if readiness.error:  # returned, not raised: a probe each second is no news for the log
        return problem_of(readiness.error)
    return JSONResponse({"status": "ready"})


@scrapes.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses=openapi.responses(CONTENT_TYPE_LATEST, 'tidegate_triton_ready{endpoint="localhost:8001"} 1.0'),
)
async def scrape() -> Response:
    """Text for Prometheus, for all workers together."""
    text, media_type = await run_in_threadpool(metrics.render)
    return Response(text, media_type=media_type)
