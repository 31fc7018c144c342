"""JSON log lines: always one line with the same keys."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from runtime.logs import FIELDS, JsonFormatter, is_json_line

ROOT = Path(__file__).resolve().parents[2]


def record(message: str, *args: object, **fields: Any) -> logging.LogRecord:
    return logging.getLogger("sluice.test").makeRecord(
        "sluice.test", logging.WARNING, __file__, 1, message, args, fields.pop("exc_info", None), extra=fields
    )


def line_of(entry: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter("tokenizer").format(entry)
    assert "\n" not in text
    assert is_json_line(text)
    return json.loads(text)


def test_a_line_has_time_level_process_pid_logger_message_and_its_fields():
    line = line_of(record("uid %d\nis late", 7, **{FIELDS: {"uid": 7, "request_id": "abc"}}))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "process": "tokenizer",
        "pid": os.getpid(),
        "logger": "sluice.test",
        "message": "uid 7\nis late",
        "uid": 7,
        "request_id": "abc",
    }


def test_an_exception_is_in_its_own_field_and_what_json_does_not_know_is_shown():
    try:
        raise ValueError("bad")
    except ValueError:
        line = line_of(record("failed", exc_info=sys.exc_info(), **{FIELDS: {"what": object}}))
    assert line["exception"].startswith("Traceback (most recent call last)")
    assert line["exception"].endswith("ValueError: bad")
    assert line["what"] == "<class 'object'>"


def test_what_a_library_prints_is_not_taken_for_a_line():
    assert not is_json_line("Fatal Python error: Segmentation fault")
    assert not is_json_line('{"loss": 0.1}')
    assert not is_json_line("[1, 2]")
    assert not is_json_line("")


SCRIPT = """
import sys, threading, warnings
from messages.config.server import RunConfig
from runtime.logs import set_up_logging
set_up_logging("scheduler", RunConfig(log_format=sys.argv[1]))
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("a bug")
"""


def run_script(log_format: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    return result.stderr.splitlines()


def test_warnings_and_uncaught_exceptions_of_a_process_are_lines_of_json_too():
    warned, in_thread, in_main = map(json.loads, run_script("json"))
    assert warned["logger"] == "py.warnings"
    assert "old" in warned["message"]
    assert in_thread["exception"].endswith("ZeroDivisionError: division by zero")
    assert in_main["exception"].endswith("RuntimeError: a bug")
    assert (in_main["level"], in_main["process"]) == ("critical", "scheduler")
