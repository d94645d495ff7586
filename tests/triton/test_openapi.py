"""Requests made from the OpenAPI document, to a gateway in front of a real Triton."""

from __future__ import annotations

from typing import Any

import httpx
import schemathesis
from hypothesis import settings

from tests.requests_from_openapi import STEADY, ask, document, leaves_no_time

ASKED = document()


@ASKED.include(path="/v1/classify").parametrize()
@settings(STEADY, max_examples=60)
def test_any_request_is_answered_as_documented(case: schemathesis.Case[Any], gate: httpx.Client) -> None:
    """Pictures and damage, sense and nonsense: a real decoder and a real model change nothing of what is promised."""
    if leaves_no_time(case):
        del case.headers["X-Request-Timeout"]  # Triton 2.51 may crash on deadlines of a few milliseconds
    ask(case, str(gate.base_url))


@ASKED.exclude(path="/v1/classify").parametrize()
@settings(STEADY, max_examples=3)
def test_any_other_request_is_answered_as_documented(case: schemathesis.Case[Any], gate: httpx.Client) -> None:
    """The other routes, with real certificates and labels."""
    ask(case, str(gate.base_url))
