"""Log lines."""

from __future__ import annotations

import json
import logging

from gateway.observe.logging import JsonFormatter, PlainFormatter, request_id


def record(**extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "x", "levelname": "WARNING", "msg": "it %s", "args": ("broke",), **extra})


def test_json_lines_carry_the_request_id_and_the_extras() -> None:
    """One object on one line, whatever is in the values."""
    token = request_id.set("abc")
    try:
        line = JsonFormatter().format(record(reason='a "quoted"\nreason'))
    finally:
        request_id.reset(token)
    assert "\n" not in line
    assert json.loads(line) == {
        **json.loads(line),
        "level": "warning",
        "message": "it broke",
        "request_id": "abc",
        "reason": 'a "quoted"\nreason',
    }


def test_plain_lines_are_for_a_person() -> None:
    """Level, message and extras; no request id where there is no request."""
    line = PlainFormatter().format(record(reason="full"))
    assert line.endswith("warning it broke reason=full")
