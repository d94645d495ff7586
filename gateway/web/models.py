"""`GET /v1/models` and `/v1/models/{name}`: what stands behind the gate."""

from __future__ import annotations

from fastapi import APIRouter, Request

from gateway.triton.model import Model
from gateway.web import openapi, schemas
from gateway.web.access import known_caller
from gateway.web.gate import Gate, GateDep

router = APIRouter(tags=["models"])


@router.get(
    "/v1/models",
    responses=openapi.responses(
        openapi.JSON, openapi.MODEL_LIST, "unauthorized", "upstream_unavailable", "model_not_ready"
    ),
    summary="List the models",
)
async def list_models(request: Request, gate: GateDep) -> schemas.ModelList:
    """Every model that the caller can name in a request, and the names of those that cannot be served now."""
    caller = await known_caller(request, gate)
    readiness = await gate.discovery.check()
    models = gate.discovery.models()
    if readiness.error and not models:
        raise readiness.error
    data = [_out(model, gate, readiness.ready) for model in models if caller.may_use(model.name)]
    return schemas.ModelList(data=data, unavailable=list(filter(caller.may_use, gate.discovery.broken())))


@router.get(
    "/v1/models/{name}",
    responses=openapi.responses(
        openapi.JSON,
        openapi.MODEL_DETAIL,
        "unauthorized",
        "model_not_found",
        "not_found",  # a name with a slash is another path
        "upstream_unavailable",
        "model_not_ready",
    ),
    summary="One model, its certificate and its labels",
)
async def get_model(request: Request, name: str, gate: GateDep, version: str | None = None) -> schemas.ModelDetail:
    """The model's task, version and limits, the certificate of its engine, and the names of its classes, in order.

    Of the main version, or of the one that is named.
    """
    caller = await known_caller(request, gate)
    readiness = await gate.discovery.check()
    asked = caller.asked_model(name, gate.settings.default_model)
    model = await (gate.discovery.get(asked, version) if version else gate.discovery.main(asked))
    certificate = None if model.certificate is None else dict(model.certificate)
    return schemas.ModelDetail(
        **dict(_out(model, gate, readiness.ready)), certificate=certificate, labels=list(model.labels)
    )


def _out(model: Model, gate: Gate, ready: bool) -> schemas.ModelOut:
    return schemas.ModelOut(
        id=model.name,
        task=model.task.name,
        version=model.version,
        versions=[
            schemas.ServedVersion(
                version=each.version, weight=weight, shadow=each.traffic.shadow if each.traffic else 0
            )
            for each, weight in gate.discovery.shares(model.name)
        ],
        classes=len(model.labels),
        dim=model.dim,
        normalised=model.normalised,
        moderates=sorted({judgement.category for judgement in model.moderation.values()}),
        max_batch=model.max_batch,
        ready=ready,
        certified=model.certificate is not None,
        precision=model.precision,
        weights=model.weights,
    )
