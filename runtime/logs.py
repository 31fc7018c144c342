"""Log lines, the same in every process: text, or one JSON object per line with `--log-format json`."""

import logging
import os
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from messages.config.server import RunConfig
from messages.control.admin import Acknowledged, ProcessResult, SetLogLevel

TEXT_FORMAT = "%(levelname)s %(name)s: %(message)s"

FIELDS = "fields"
"""`log.info(…, extra={FIELDS: {"uid": 7}})` adds fields to a JSON line; the message should contain them too."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every JSON line; `time` is UTC. A line may also have an `exception` (a traceback) and other fields."""

    time: str
    level: str
    process: str
    pid: int
    logger: str
    message: str


class JsonFormatter(logging.Formatter):
    """Formats a log record of process `process` as a line of JSON."""

    def __init__(self, process: str):
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = dict(getattr(record, FIELDS, {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        line = LogLine(
            time=shown_time(record.created),
            level=record.levelname.lower(),
            process=self._process,
            pid=os.getpid(),
            logger=record.name,
            message=record.getMessage(),
        )
        return json_line(line, fields)


def json_line(line: LogLine, fields: Mapping[str, Any] | None = None) -> str:
    """Returns the line as JSON, without a line break."""
    return msgspec.json.encode({**msgspec.structs.asdict(line), **(fields or {})}, enc_hook=repr).decode()


def is_json_line(text: str) -> bool:
    """True if `text` is a log line of one of our processes, not the output of a library."""
    try:
        msgspec.json.decode(text, type=LogLine)
    except msgspec.DecodeError:
        return False
    return True


def shown_time(unix_s: float) -> str:
    """`2026-01-31T12:00:00.123Z`."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up_logging(process: str, run: RunConfig) -> None:
    """Makes this process log to standard error. In JSON, warnings and uncaught exceptions are one line each, too."""
    logging.basicConfig(level=run.log_level.upper(), stream=sys.stderr, format=TEXT_FORMAT, force=True)
    if run.log_format == "json":
        logging.getLogger().handlers[0].setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(*args[:3])


def set_log_level(command: SetLogLevel) -> ProcessResult:
    """Sets the log level of this process, including its libraries."""
    logging.getLogger().setLevel(command.level.upper())
    return Acknowledged(f"shows lines of level {command.level} and above")


def _log_uncaught(*error: Any) -> None:
    logging.getLogger("sluice.process").critical("uncaught exception", exc_info=error)
