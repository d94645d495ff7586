"""The shapes of JSON on the wire, for reading requests and for the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

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


class ClassifyRequest(BaseModel):
    """The JSON form of a request to classify."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["images"]})
    # An empty list and none at all are `missing_image`, which is not for a validator to say.
    images: Annotated[list[ImageInput], FailFast()] = Field(default_factory=list, json_schema_extra={"minItems": 1})
    top_k: Annotated[int, Field(strict=True, ge=1)] | None = Field(None, description="1 to the number of classes; 5")
    threshold: Annotated[float, Field(strict=True, ge=0, le=1)] | None = Field(None, description="0 to 1; 0")
    model: str | None = None


class PredictionOut(BaseModel):
    """One class of one image."""

    label: str
    class_id: int = Field(ge=0)
    probability: float = Field(ge=0, description="0 to 1, as the model gave it; those of all classes sum to 1")


class ErrorOut(BaseModel):
    """Why one image has no predictions."""

    code: Literal[
        "empty_image",
        "unsupported_image",
        "corrupt_image",
        "image_too_large",
        "file_too_large",
        "invalid_base64",
        "url_forbidden",
        "url_fetch_failed",
        "bad_upstream_response",
    ]
    message: str


class ClassifiedOut(BaseModel):
    """An image that was classified."""

    model_config = ConfigDict(extra="forbid")
    index: int = Field(ge=0, description="its place in the request, from 0")
    filename: str | None = Field(description="as the form named it, without folders; null elsewhere")
    status: Literal["ok"]
    predictions: list[PredictionOut] = Field(description="largest probability first")


class FailedOut(BaseModel):
    """An image that could not be classified."""

    model_config = ConfigDict(extra="forbid")
    index: int = Field(ge=0, description="its place in the request, from 0")
    filename: str | None = Field(description="as the form named it, without folders; null elsewhere")
    status: Literal["error"]
    error: ErrorOut


ResultOut = Annotated[ClassifiedOut | FailedOut, Field(discriminator="status")]


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


class ClassifyResponse(BaseModel):
    """`results` has one entry for every image sent, in the order sent."""

    request_id: str
    model: ModelRef
    results: list[ResultOut]
    timings_ms: TimingsOut


class ModelOut(BaseModel):
    """A model behind the gate."""

    id: str
    object: Literal["model"] = "model"
    task: str
    version: str
    classes: int
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
            "if": {"properties": {"code": {"const": "no_usable_image"}}},
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
    results: list[FailedOut] = Field(
        default_factory=list, description="only with no_usable_image: the reason of each image, in the order sent"
    )
