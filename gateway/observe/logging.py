"""Logs: one JSON object a line, or plain lines for a person at a terminal, each with its request id."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar

from gateway.observe import stages

request_id: ContextVar[str] = ContextVar("request_id", default="-")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _OWN}


class JsonFormatter(logging.Formatter):
    """Time in UTC, level, logger, message, request id, ids of trace and span if any, and what `extra` carried."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id.get(),
            **stages.ids(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class PlainFormatter(logging.Formatter):
    """The same for a person."""

    def format(self, record: logging.LogRecord) -> str:
        extras = " ".join(f"{key}={value}" for key, value in _extras(record).items())
        where = "" if request_id.get() == "-" else f" [{request_id.get()}]"
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {record.levelname.lower():7} {record.getMessage()} {extras}".rstrip() + where
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, form: str) -> None:
    """Sends all logs of this process to stderr; `form` is `json`, `plain`, or `auto` (plain on a terminal)."""
    handler = logging.StreamHandler(sys.stderr)
    plain = form == "plain" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(PlainFormatter() if plain else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    logging.getLogger("uvicorn.access").propagate = False  # ours has the route, the status and the request id
