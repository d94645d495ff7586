"""Every way in which a request, or one image of it, can fail.

    TidegateError
    ├── RequestError               the caller can mend it
    │   ├── MalformedRequest       malformed_request
    │   ├── InvalidParameter       invalid_parameter
    │   ├── MissingImage           missing_image
    │   ├── MissingText            missing_text
    │   ├── NothingUsable
    │   │   ├── NoUsableImage      no_usable_image
    │   │   └── NoUsableText       no_usable_text
    │   ├── BodyTooLarge           body_too_large
    │   ├── TooManyImages          too_many_images
    │   ├── TooManyTexts           too_many_texts
    │   ├── BodyTimeout            body_timeout
    │   ├── UnsupportedEncoding    unsupported_encoding
    │   ├── ModelNotFound          model_not_found
    │   ├── Unauthorized           unauthorized
    │   └── RateLimited            rate_limited
    ├── Overloaded                 overloaded
    ├── DeadlineExceeded           deadline_exceeded
    ├── UpstreamError              Triton's side
    │   ├── UpstreamUnavailable    upstream_unavailable
    │   ├── ModelNotReady          model_not_ready
    │   └── BadUpstreamResponse    bad_upstream_response
    └── ClientLeft                 nobody is there to answer

    ItemProblem                   a value, not an exception: one image's trouble stays in its place

Codes are part of the contract. HTTP numbers are not known here: `gateway.web.problems` gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class TidegateError(Exception):
    """A failure with a public `detail` for the caller and an optional `private` text for the log."""

    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, private: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.private = private


def descendants(kind: type[TidegateError]) -> list[type[TidegateError]]:
    """`kind` and all that is below it in the tree."""
    return [kind, *(each for child in kind.__subclasses__() for each in descendants(child))]


class RequestError(TidegateError):
    """The caller can mend it."""


class MalformedRequest(RequestError):
    code = "malformed_request"
    title = "The request cannot be read"


class InvalidParameter(RequestError):
    code = "invalid_parameter"
    title = "A parameter has no usable value"


class MissingImage(RequestError):
    code = "missing_image"
    title = "The request holds no image"


class MissingText(RequestError):
    code = "missing_text"
    title = "The request holds no text"


class NothingUsable(RequestError):
    """Every item failed; `results` keeps the reason of each, in the order sent."""

    def __init__(self, detail: str, results: list[dict[str, object]]) -> None:
        super().__init__(detail)
        self.results = results


class NoUsableImage(NothingUsable):
    code = "no_usable_image"
    title = "None of the images could be used"


class NoUsableText(NothingUsable):
    code = "no_usable_text"
    title = "None of the texts could be used"


class BodyTooLarge(RequestError):
    code = "body_too_large"
    title = "The request body is too large"


class TooManyImages(RequestError):
    code = "too_many_images"
    title = "Too many images in one request"


class TooManyTexts(RequestError):
    code = "too_many_texts"
    title = "Too many texts in one request"


class BodyTimeout(RequestError):
    code = "body_timeout"
    title = "The request did not arrive in time"


class UnsupportedEncoding(RequestError):
    code = "unsupported_encoding"
    title = "The content encoding is not supported"


class ModelNotFound(RequestError):
    code = "model_not_found"
    title = "No such model"


class Unauthorized(RequestError):
    code = "unauthorized"
    title = "An API key is needed"


class RateLimited(RequestError):
    """The caller has had its share for now; `retry_after` is in whole seconds."""

    code = "rate_limited"
    title = "Too many requests"

    def __init__(self, detail: str, *, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class Overloaded(TidegateError):
    """The gate is full; `retry_after` is in seconds."""

    code = "overloaded"
    title = "Too much work in flight"

    def __init__(self, detail: str, *, retry_after: float, private: str | None = None) -> None:
        super().__init__(detail, private=private)
        self.retry_after = retry_after


class DeadlineExceeded(TidegateError):
    code = "deadline_exceeded"
    title = "The deadline passed before the answer was ready"


class UpstreamError(TidegateError):
    """Triton's side; `private` holds its own words."""


class UpstreamUnavailable(UpstreamError):
    code = "upstream_unavailable"
    title = "The inference server cannot be reached"


class ModelNotReady(UpstreamError):
    code = "model_not_ready"
    title = "The model is not ready"


class BadUpstreamResponse(UpstreamError):
    code = "bad_upstream_response"
    title = "The inference server gave an unusable answer"


class ClientLeft(TidegateError):
    """The caller closed the connection before the whole request was here."""


@dataclass(frozen=True)
class ItemProblem:
    """Why one image, or text, has no answer: a `code` of the contract and a sentence for a person."""

    code: str
    message: str
