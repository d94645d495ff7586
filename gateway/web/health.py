"""Liveness, readiness, metrics."""

from __future__ import annotations

from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from gateway.observe import metrics
from gateway.web import schemas
from gateway.web.gate import GateDep
from gateway.web.problems import problem_of

router = APIRouter(tags=["operations"])


@router.get("/livez", summary="Is this process alive")
async def livez() -> schemas.Health:
    """Asks nobody: a Triton that is down is no reason to restart the gateway."""
    return schemas.Health(status="ok")


@router.get("/readyz", summary="Can it classify", response_model=schemas.Health, responses={503: schemas.PROBLEM})
async def readyz(gate: GateDep) -> Response:
    """200 when a real, tiny inference through Triton succeeded within the last second."""
    readiness = await gate.discovery.check()
    if readiness.error:  # returned, not raised: a probe each second is no news for the log
        return problem_of(readiness.error)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def scrape() -> Response:
    """Text for Prometheus, for all workers together."""
    text, media_type = await run_in_threadpool(metrics.render)
    return Response(text, media_type=media_type)
