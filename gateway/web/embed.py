"""`POST /v1/embed`: photos in, embeddings out, and their labels too where the model can."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.cache import Row
from gateway.errors import InvalidParameter, ItemProblem
from gateway.inference import Question
from gateway.triton.model import EMBED
from gateway.triton.tensors import CLASSIFICATION, EMBEDDING
from gateway.web import answers, openapi, parameters, schemas
from gateway.web.access import counted_caller
from gateway.web.gate import GateDep
from gateway.web.images import read_images

router = APIRouter(tags=["images"])


@router.post(
    "/v1/embed",
    response_model=schemas.EmbedResponse,
    responses=openapi.responses(openapi.JSON, openapi.EMBEDDED, *openapi.OF_IMAGES),
    openapi_extra=openapi.EMBED_REQUEST,
    summary="Embed images",
)
async def embed(request: Request, gate: GateDep) -> Response:
    """Images in the same three forms as for `/v1/classify`; one result for each, in the order sent.

    With `classify` each picture is decoded once, and gets predictions as well.
    """
    caller = await counted_caller(request, gate)
    with gate.admission.hold() as grow:
        upload = await read_images(request, gate, caller, grow, schemas.EmbedRequest)
        wanted = upload.parameters
        deadline = parameters.deadline(request, gate.settings)
        labels = parameters.flag(wanted, "classify")
        if not labels and {"top_k", "threshold"} & wanted.keys():
            raise InvalidParameter("top_k and threshold are of use only with classify.")
        outputs = (EMBEDDING, CLASSIFICATION) if labels else (EMBEDDING,)
        model = await parameters.model(wanted, EMBED, gate.settings.default_embedder, gate, caller, outputs)
        if labels and not model.labels:
            raise InvalidParameter(f"The model {model.name} only embeds: it cannot classify as well.")
        ranking = parameters.ranking(wanted, model) if labels else None
        normalize, encoding = parameters.flag(wanted, "normalize"), parameters.encoding(wanted)
        files = await gate.fetch([file.content for file in upload.files], deadline, grow)
        question = Question(model, outputs, parameters.version(wanted))
        answered = await gate.inference.answer(files, question, deadline, caller.identity)

        def show(row: Row) -> dict[str, object] | ItemProblem:
            embedding = answers.embedding(row.values[EMBEDDING], normalize=normalize, encoding=encoding)
            if isinstance(embedding, ItemProblem):
                return embedding
            return {"embedding": embedding, **({"predictions": ranking.predictions(row)} if ranking else {})}

        return answers.of_images(request, upload, model, answered, show, dim=model.dim)
