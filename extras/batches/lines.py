"""The lines of a batch's input file: what each asks for, and what is wrong with one that asks for nothing sound."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from messages.errors import SluiceError, quoted
from messages.ring.requests import YIELDING_PRIORITY

ENDPOINTS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/embeddings", "/v1/rerank", "/v1/score", "/classify", "/v1/decisions"),
)
"""The endpoints that a line may request: those that compute, with the bodies of OpenAI's API and vLLM's."""

REFUSED = {"stream": "stream_not_supported", "background": "background_not_supported"}
"""Switches that must be off, as a line has one result, with the codes of their errors."""

MAX_ERRORS = 100
"""Most errors reported for one file."""


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """An error in line `line`, which counts from 1, or (`None`) in the file."""

    code: str
    line: int | None = None
    message: str
    param: str | None = None


class BadLineError(SluiceError):
    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(message)
        self.code, self.param = code, param


class BatchLine(msgspec.Struct, frozen=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: dict[str, Raw]

    def request_body(self, timeout_s: float | None) -> bytes:
        """Returns the body at the priority of batches, with `timeout_s` if it has no timeout of its own.

        A response is stored only if the line requests it: otherwise a batch would push out the responses that clients
        continue from.
        """
        patient = {} if timeout_s is None else {"timeout_s": timeout_s}
        return msgspec.json.encode({"store": False, **patient, **self.body, "priority": YIELDING_PRIORITY})


_decoder = msgspec.json.Decoder(BatchLine)


def read_line(raw: bytes, urls: Collection[str], max_bytes: int) -> BatchLine:
    """Returns a line whose `url` is one of `urls`. Raises `BadLineError`."""
    if len(raw) > max_bytes:
        raise BadLineError("line_too_large", f"the line is larger than {max_bytes} bytes (--max-body-mb)")
    try:
        line = _decoder.decode(raw)
        asked: dict[str, Any] = {name: msgspec.json.decode(line.body.get(name, b"false")) for name in REFUSED}
    except msgspec.ValidationError as error:
        field = str(error).partition("`$.")[2].rstrip("`").partition(".")[0]
        raise BadLineError("invalid_request_line", f"{error}", field or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLineError("invalid_json_line", f"the line is not valid JSON: {error}") from None
    if line.method != "POST":
        raise BadLineError("invalid_method", f"method must be POST, got {quoted(line.method)}", "method")
    if line.url not in urls:
        expected = " or ".join(urls)
        raise BadLineError("invalid_url", f"url must be {expected} in this batch, got {quoted(line.url)}", "url")
    for name, code in REFUSED.items():
        if asked[name]:
            raise BadLineError(code, f"{name} must be false in a batch", f"body.{name}")
    return line


def numbered_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines with their numbers: a blank one as empty, one over `max_bytes` truncated just beyond that."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_bytes + 2):
            number += 1
            is_too_long = len(raw) > max_bytes + 1 and not raw.endswith(b"\n")
            rest = raw
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(max_bytes)
            yield number, raw if is_too_long else raw.removeprefix(b"\xef\xbb\xbf").strip()


class FileCheck(NamedTuple):
    num_lines: int
    errors: tuple[LineError, ...]


def check_file(path: Path, urls: Collection[str], max_bytes: int, max_lines: int | None = None) -> FileCheck:
    """Reads the whole file and returns the number of its requests and the first `MAX_ERRORS` errors.

    The file may have up to `max_lines` requests, and as many blank lines.
    """
    errors: list[LineError] = []
    seen: set[str] = set()
    num_lines = 0
    for number, raw in numbered_lines(path, max_bytes):
        if max_lines is not None and number > 2 * max_lines:
            message = f"the file has more than {2 * max_lines} lines, blank ones included"
            errors.append(LineError(code="too_many_lines", message=message))
            break
        if not raw:
            continue
        num_lines += 1
        if max_lines is not None and num_lines > max_lines:
            errors.append(LineError(code="too_many_tasks", message=f"a batch has at most {max_lines} lines"))
        if len(errors) >= MAX_ERRORS or num_lines - 1 == max_lines:
            break
        try:
            custom_id = read_line(raw, urls, max_bytes).custom_id
            if custom_id in seen:
                message = f"the custom_id {quoted(custom_id)} is that of an earlier line"
                raise BadLineError("duplicate_custom_id", message, "custom_id")
            seen.add(custom_id)
        except BadLineError as error:
            errors.append(LineError(code=error.code, line=number, message=str(error), param=error.param))
    if not (num_lines or errors):
        errors.append(LineError(code="empty_file", message="the file has no line"))
    return FileCheck(num_lines, tuple(errors))
