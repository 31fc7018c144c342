"""The lines of an input file, and the errors of bad ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from extras.batches.lines import MAX_ERRORS, check_file, read_line
from messages.ring.requests import YIELDING_PRIORITY

URLS = ("/v1/completions",)
MAX_BYTES = 1000


def line(custom_id: Any = "a", **changes: Any) -> str:
    fields = {"custom_id": custom_id, "method": "POST", "url": URLS[0], "body": {"prompt": "hi"}, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def check(path: Path, *lines: str, max_lines: int | None = None) -> list[tuple[int | None, str, str | None]]:
    file = path / "in.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    checked = check_file(file, URLS, MAX_BYTES, max_lines)
    assert all(error.message for error in checked.errors)
    return [(error.line, error.code, error.param) for error in checked.errors]


def test_a_sound_file(tmp_path: Path):
    assert check(tmp_path, "\ufeff" + line("a"), "", "  ", line("b", more=1), "\r") == []
    assert check_file(tmp_path / "in.jsonl", URLS, MAX_BYTES).num_lines == 2


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[" * 5000, "line_too_large", None),
        ('"text"', "invalid_request_line", None),
        (line(None), "invalid_request_line", None),
        (line(""), "invalid_request_line", "custom_id"),
        (line(7), "invalid_request_line", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(body=[1]), "invalid_request_line", "body"),
        (line(body={"stream": True}), "stream_not_supported", "body.stream"),
        (line(body={"background": True}), "background_not_supported", "body.background"),
        (line("first"), "duplicate_custom_id", "custom_id"),
        (line(body={"prompt": "x" * MAX_BYTES}), "line_too_large", None),
    ],
)
def test_a_bad_line_is_named_and_those_behind_it_are_read(tmp_path: Path, bad: str, code: str, param: str | None):
    found = check(tmp_path, line("first"), "", bad, line(url="/elsewhere"), line("last"))
    assert found == [(3, code, param), (4, "invalid_url", "url")]


def test_files_with_too_little_or_too_much(tmp_path: Path):
    assert check(tmp_path, "", " ") == [(None, "empty_file", None)]
    lines = [line(f"{number}") for number in range(4)]
    assert check(tmp_path, *lines, max_lines=4) == []
    assert check(tmp_path, *lines, max_lines=3) == [(None, "too_many_tasks", None)]
    assert len(check(tmp_path, *["{"] * 2 * MAX_ERRORS)) == MAX_ERRORS


def test_blank_lines_are_bounded_in_number_and_length(tmp_path: Path):
    assert check(tmp_path, line("a"), *[""] * 6, line("b"), max_lines=4) == []
    assert check(tmp_path, line("a"), *[" "] * 9, line("b"), max_lines=4) == [(None, "too_many_lines", None)]
    assert check(tmp_path, *[""] * 10, max_lines=4) == [(None, "too_many_lines", None)]
    assert check(tmp_path, line("a"), " " * 2 * MAX_BYTES) == [(2, "line_too_large", None)]


def test_a_line_goes_behind_all_others_and_keeps_its_own_timeout():
    body = {"prompt": "é", "priority": -5, "seed": 2**60, "timeout_s": 3}
    request = read_line(line(body=body).encode(), URLS, MAX_BYTES)
    assert json.loads(request.request_body(9.0)) == {**body, "priority": YIELDING_PRIORITY, "store": False}
    assert json.loads(read_line(line().encode(), URLS, MAX_BYTES).request_body(9.0))["timeout_s"] == 9.0
    assert "timeout_s" not in json.loads(read_line(line().encode(), URLS, MAX_BYTES).request_body(None))
    stored = read_line(line(body={"prompt": "hi", "store": True}).encode(), URLS, MAX_BYTES)
    assert json.loads(stored.request_body(None))["store"] is True
