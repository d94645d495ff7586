"""The shapes of JSON on the wire, for reading requests and for the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic.config import JsonDict

from gateway.web.problems import STATUS


class ImageInput(BaseModel):
    """One image: its bytes in base64 (also a `data:` URI), or an address where the operator allows it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "oneOf": [
                {"required": ["data"], "properties": {"data": {"type": "string"}, "url": {"type": "null"}}},
                {"required": ["url"], "properties": {"url": {"type": "string"}, "data": {"type": "null"}}},
            ]
        },
    )
    data: str | None = Field(None, description="base64, standard or URL-safe, or a data: URI")
    url: str | None = Field(None, description="taken only where the operator turned it on")

    @model_validator(mode="after")
    def _one_of_them(self) -> ImageInput:
        if (self.data is None) == (self.url is None):
            raise ValueError("must have either data or url")
        return self


class Parameters(BaseModel):
    """What a document says beside its items."""

    model: str | None = Field(None, description="one of GET /v1/models; the route's default model if none is named")
    version: str | None = Field(None, description="only this version of the model; whichever takes its traffic if none")

    def parameters(self) -> dict[str, str]:
        """Every parameter that was given, as a form would have it."""
        given = {name: getattr(self, name) for name in self.model_fields_set - {"images", "texts"}}
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in given.items()
            if value is not None
        }


class ImagesRequest(Parameters):
    """The JSON form of a request about images; the other forms have its keys as fields and in the query."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["images"]})
    # An empty list and none at all are `missing_image`, which is not for a validator to say.
    images: Annotated[list[ImageInput], FailFast()] = Field(default_factory=list, json_schema_extra={"minItems": 1})


TopK = Annotated[int, Field(strict=True, ge=1)] | None
Threshold = Annotated[float, Field(strict=True, ge=0, le=1)] | None
Flag = Annotated[bool, Field(strict=True)] | None


class ClassifyRequest(ImagesRequest):
    """The JSON form of a request to classify."""

    top_k: TopK = Field(None, description="1 to the number of classes; 5")
    threshold: Threshold = Field(None, description="0 to 1; 0")


class EmbedRequest(ImagesRequest):
    """The JSON form of a request for embeddings."""

    normalize: Flag = Field(None, description="unit length (L2); what the model gives if not")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="float; base64 of FP32, little-endian")
    classify: Flag = Field(None, description="predictions, too, from the same decoded picture, where the model can")
    top_k: TopK = Field(None, description="with classify: 1 to the number of classes; 5")
    threshold: Threshold = Field(None, description="with classify: 0 to 1; 0")


class TextRequest(Parameters):
    """A request to classify texts."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["texts"]})
    texts: Annotated[list[str], FailFast()] = Field(default_factory=list, json_schema_extra={"minItems": 1})
    top_k: TopK = Field(None, description="1 to the number of classes; 5")
    threshold: Threshold = Field(None, description="0 to 1; 0")


_STRING: JsonDict = {"type": "string"}
_PART: JsonDict = {
    "oneOf": [
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["type", "text"],
            "properties": {"type": {"const": "text"}, "text": _STRING},
        },
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["type", "image_url"],
            "properties": {
                "type": {"const": "image_url"},
                "image_url": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["url"],
                    "properties": {"url": _STRING},
                },
            },
        },
    ]
}


class OpenAI(BaseModel):
    """A request in the shape of the OpenAI API. `input` is looked at by its route, which can say where it is wrong."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["input"]})
    input: Any = None
    model: str | None = Field(None, description="one of GET /v1/models; the route's default model if none is named")
    version: str | None = Field(None, description="only this version of the model; whichever takes its traffic if none")


class EmbeddingsRequest(OpenAI):
    """A request for embeddings of texts, or of images as `data:` URIs."""

    input: Any = Field(
        None,
        description="a text, or a data: URI of an image; or a list of one kind",
        json_schema_extra={"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": _STRING}]},
    )
    encoding_format: Literal["float", "base64"] | None = Field(None, description="float; base64 of FP32, little-endian")
    dimensions: Annotated[int, Field(strict=True, ge=1)] | None = Field(None, description="the model's own, or none")
    user: str | None = Field(None, description="taken, and not looked at")


class ModerationsRequest(OpenAI):
    """A request to judge texts, or the parts of one message."""

    input: Any = Field(
        None,
        description="a text, a list of texts, or a list of parts, of which images are data: URIs",
        json_schema_extra={
            "anyOf": [
                _STRING,
                {"type": "array", "minItems": 1, "items": _STRING},
                {"type": "array", "minItems": 1, "items": _PART},
            ]
        },
    )


class EmbeddingOut(BaseModel):
    """One embedding."""

    object: Literal["embedding"]
    index: int = Field(ge=0)
    embedding: list[float] | str = Field(description="dim numbers, or base64 of them as FP32, little-endian")


class Usage(BaseModel):
    """Always 0: there are no tokens here."""

    prompt_tokens: Literal[0]
    total_tokens: Literal[0]


class EmbeddingsResponse(BaseModel):
    """One embedding for each input, in order."""

    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    version: str = Field(description="of the model; vectors of two versions cannot be compared")
    usage: Usage


class ModerationOut(BaseModel):
    """What was found in one text, or in the parts of one message."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float] = Field(description="probability, 0 to 1; 0 where nothing judged it")
    category_applied_input_types: dict[str, list[Literal["text", "image"]]] = Field(
        description="what each category was judged by; empty where no model here judges it"
    )


class ModerationsResponse(BaseModel):
    """One result for each text, or one for all parts."""

    id: str
    model: str
    version: str = Field(description="of the model")
    results: list[ModerationOut]


class PredictionOut(BaseModel):
    """One class of one image."""

    label: str
    class_id: int = Field(ge=0)
    probability: float = Field(ge=0, description="0 to 1, as the model gave it; those of all classes sum to 1")


class ErrorOut(BaseModel):
    """Why one item has no answer."""

    code: Literal[
        "empty_image",
        "unsupported_image",
        "corrupt_image",
        "image_too_large",
        "file_too_large",
        "invalid_base64",
        "url_forbidden",
        "url_fetch_failed",
        "empty_text",
        "text_too_large",
        "unknown_text",
        "bad_upstream_response",
    ]
    message: str


_INDEX = Field(ge=0, description="its place in the request, from 0")
_FILENAME = Field(description="as the form named it, without folders; null elsewhere")


class ClassifiedOut(BaseModel):
    """An image that was classified."""

    model_config = ConfigDict(extra="forbid")
    index: int = _INDEX
    filename: str | None = _FILENAME
    status: Literal["ok"]
    predictions: list[PredictionOut] = Field(description="largest probability first")


class EmbeddedOut(BaseModel):
    """An image that was embedded."""

    model_config = ConfigDict(extra="forbid")
    index: int = _INDEX
    filename: str | None = _FILENAME
    status: Literal["ok"]
    embedding: list[float] | str = Field(description="dim numbers, or base64 of them as FP32, little-endian")
    predictions: list[PredictionOut] | None = Field(None, description="with classify: largest probability first")


class TextOut(BaseModel):
    """A text that was classified."""

    model_config = ConfigDict(extra="forbid")
    index: int = _INDEX
    status: Literal["ok"]
    predictions: list[PredictionOut] = Field(description="largest probability first")
    known_words: float | None = Field(
        ge=0,
        le=1,
        description="share of the text's words that the model has learnt; with 0 it says what is usual, whatever the "
        "text; null when the model does not say",
    )


class FailedOut(BaseModel):
    """An image that got no answer."""

    model_config = ConfigDict(extra="forbid")
    index: int = _INDEX
    filename: str | None = _FILENAME
    status: Literal["error"]
    error: ErrorOut


class FailedTextOut(BaseModel):
    """A text that got no answer."""

    model_config = ConfigDict(extra="forbid")
    index: int = _INDEX
    status: Literal["error"]
    error: ErrorOut


class ModelRef(BaseModel):
    """Who answered."""

    name: str
    version: str


class TimingsOut(BaseModel):
    """Milliseconds: reading the body, fetching images by address, waiting for a permit, Triton, and all together."""

    read: float
    fetch: float | None = Field(None, description="where images were given by address")
    wait: float
    infer: float
    total: float


class Answer(BaseModel):
    """`results` has one entry for every item sent, in the order sent."""

    request_id: str
    model: ModelRef
    timings_ms: TimingsOut


class ClassifyResponse(Answer):
    """Predictions of images."""

    results: list[Annotated[ClassifiedOut | FailedOut, Field(discriminator="status")]]


class EmbedResponse(Answer):
    """Embeddings of images."""

    dim: int = Field(ge=1, description="length of every embedding")
    results: list[Annotated[EmbeddedOut | FailedOut, Field(discriminator="status")]]


class TextResponse(Answer):
    """Predictions of texts."""

    results: list[Annotated[TextOut | FailedTextOut, Field(discriminator="status")]]


class ServedVersion(BaseModel):
    """A version that is served."""

    version: str
    weight: float = Field(ge=0, le=1, description="share of the requests that name no version")
    shadow: float = Field(ge=0, le=1, description="share of the main version's requests that are repeated on it")


class ModelOut(BaseModel):
    """A model behind the gate."""

    id: str
    object: Literal["model"] = "model"
    task: str
    version: str
    versions: list[ServedVersion] = Field(description="the main one first, then its candidates")
    classes: int = Field(ge=0, description="0 for a model that only embeds")
    dim: int = Field(ge=0, description="length of its embeddings; 0 for a model that only classifies")
    normalised: bool = Field(description="whether its embeddings have unit length")
    moderates: list[str] = Field(description="categories of POST /v1/moderations that its labels stand for")
    max_batch: int
    ready: bool
    certified: bool = Field(
        description="whether its engine carries a certificate, and runs with the preprocessing it was certified with"
    )
    precision: str | None = Field(description="what the engine computes in, by its certificate: fp32, fp16, …")
    weights: str | None = Field(
        description="by its certificate: pretrained, file, or random (for load tests; its labels mean nothing)"
    )


class ModelDetail(ModelOut):
    """The same with the engine's certificate, and the names of its classes, in order."""

    certificate: dict[str, Any] | None = Field(
        description="what the engine was built from and measured to do, in the builder's own words; null without one"
    )
    labels: list[str]


class ModelList(BaseModel):
    """All models behind the gate."""

    object: Literal["list"] = "list"
    data: list[ModelOut]
    unavailable: list[str] = Field(description="models that Triton knows and cannot serve now")


class Health(BaseModel):
    """`ok` or `ready`."""

    status: str


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"code": {"enum": ["no_usable_image", "no_usable_text"]}}},
            "then": {"required": ["results"]},
            "else": {"properties": {"results": False}},
        }
    )
    type: str = Field(description="urn:tidegate:problem: and the code")
    title: str = Field(description="of the code; the same every time")
    status: int
    code: str = Field(json_schema_extra={"enum": list(STATUS)})
    detail: str = Field(description="what happened this time, for a person")
    request_id: str
    results: list[FailedOut | FailedTextOut] = Field(
        default_factory=list,
        description="only with no_usable_image and no_usable_text: the reason of each item, in the order sent",
    )
