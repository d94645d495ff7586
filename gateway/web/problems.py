"""Errors → problem documents (RFC 9457). The one place that gives a code its HTTP number."""

from __future__ import annotations

import logging
import math

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import (
    ClientLeft,
    NothingUsable,
    Overloaded,
    RateLimited,
    TidegateError,
    Unauthorized,
    UpstreamError,
    descendants,
)
from gateway.observe.logging import request_id

log = logging.getLogger(__name__)

STATUS: dict[str, int] = {
    "malformed_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "body_too_large": 413,
    "too_many_images": 413,
    "too_many_texts": 413,
    "unsupported_encoding": 415,
    "invalid_parameter": 422,
    "missing_image": 422,
    "missing_text": 422,
    "no_usable_image": 422,
    "no_usable_text": 422,
    "rate_limited": 429,
    "internal_error": 500,
    "bad_upstream_response": 502,
    "overloaded": 503,
    "upstream_unavailable": 503,
    "model_not_ready": 503,
    "deadline_exceeded": 504,
}
TITLES = {
    "not_found": "Not found",
    "method_not_allowed": "Method not allowed",
    **{error.code: error.title for error in descendants(TidegateError)},
}
UPSTREAM_RETRY_AFTER_S = 1
MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it keeps the count of answers honest


def document(code: str, detail: str, own_id: str, **members: object) -> dict[str, object]:
    """The problem document of a known `code`; `members` are extra fields."""
    return {
        "type": f"urn:tidegate:problem:{code}",
        "title": TITLES[code],
        "status": STATUS[code],
        "code": code,
        "detail": detail,
        "request_id": own_id,
        **members,
    }


def problem(code: str, detail: str, *, headers: dict[str, str] | None = None, **members: object) -> Response:
    """The answer with that document, to the request that is being served."""
    return Response(to_json(document(code, detail, request_id.get(), **members)), STATUS[code], headers, MEDIA_TYPE)


async def on_tidegate_error(request: Request, error: Exception) -> Response:
    """Our own errors: the caller gets the detail, the log gets Triton's words."""
    assert isinstance(error, TidegateError)
    if isinstance(error, ClientLeft):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if STATUS[error.code] >= 500:
        log.warning(error.detail, extra={"code": error.code, "reason": error.private or "-"})
    answer = problem_of(error)
    if request.scope["state"].get("body_unread"):
        answer.headers["Connection"] = "close"  # what is left of the body must not be taken for the next request
    return answer


def problem_of(error: TidegateError) -> Response:
    """The problem document of an error; a 503 and a 429 say when to come again, a 401 what is missing."""
    headers = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, Overloaded | RateLimited):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    elif isinstance(error, UpstreamError) and STATUS[error.code] == 503:
        headers["Retry-After"] = str(UPSTREAM_RETRY_AFTER_S)
    if isinstance(error, NothingUsable):
        return problem(error.code, error.detail, headers=headers, results=error.results)
    return problem(error.code, error.detail, headers=headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such route, no such method."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if "expect" in request.headers:
        headers["Connection"] = "close"  # its body may never come, and is not to be told from the next request
    if error.status_code == 405:
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"  # the middleware takes HEAD wherever GET is taken
        return problem("method_not_allowed", "This path does not take this method.", headers=headers)
    if error.status_code == 404:
        return problem("not_found", "There is nothing at this path.", headers=headers)
    code = "malformed_request" if error.status_code < 500 else "internal_error"
    return problem(code, "The request could not be processed.", headers=headers)


async def fault(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers for a fault of ours; the log has the traceback under the same request id."""
    answer = problem("internal_error", "Something went wrong here; the request id finds it in the log.")
    await answer(scope, receive, send)
