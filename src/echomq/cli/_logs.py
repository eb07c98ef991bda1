"""The log of a command, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from echomq.telemetry import JobContextFilter

_TEXT: Final = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"
_SHORT: Final = "%(asctime)s %(levelname)-7s %(message)s"
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How a log is written."""

    text = "text"
    short = "short"
    json = "json"


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how bad, who says what; job and queue where there is one; traceback; what ``extra`` held."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD and value != "":
                line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=repr)


def log_to_stderr(level: int, log_format: LogFormat) -> None:
    """Has all that this process logs written there, with the id of the job that it belongs to."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobContextFilter())
    match log_format:
        case LogFormat.json:
            handler.setFormatter(JsonLines())
        case LogFormat.short:
            handler.setFormatter(logging.Formatter(_SHORT, datefmt="%H:%M:%S"))
        case LogFormat.text:
            handler.setFormatter(logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])
