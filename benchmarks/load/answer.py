"""The answer to one request: HTTP and SSE bytes in, a `StreamResult` out, at the least cost per token.

A token costs one httptools callback, one split and one JSON decode, so two cores can hold the server and its load
generator; `check_client` in `benchmarks/load/paced_server.py` measures it.
"""

import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import httptools
import msgspec

MAX_REFUSAL_BYTES = 64 * 1024
OK = "ok"
UNFINISHED = "unfinished"
UNREACHABLE = "could not connect"
BROKEN = "broken stream"
LOST = "connection lost"
TIMED_OUT = "timed out"


class Usage(msgspec.Struct):
    """Token counts of a finished request, as the server reports them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Event(msgspec.Struct):
    """One event of a stream; fields that are not measured are skipped unread."""

    token_ids: list[int] = []
    finish_reason: str | None = None
    usage: Usage | None = None
    timing: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


@dataclass(slots=True)
class StreamResult:
    """What became of one request; filled while it runs, so a request that is cut off keeps what it got.

    `outcome` is "ok", "unfinished" or the kind of failure; stamps are `time.monotonic_ns()`.
    `arrivals_ns` has one stamp for each event that brought tokens. The request was sent `late_s` after its time.
    """

    begin_ns: int = field(default_factory=time.monotonic_ns)
    outcome: str = UNFINISHED
    detail: str = ""
    arrivals_ns: "array[int]" = field(default_factory=lambda: array("q"))
    num_tokens: int = 0
    end_ns: int = 0
    late_s: float = 0.0
    finish_reason: str | None = None
    usage: Usage | None = None
    timing: dict[str, Any] = field(default_factory=dict)

    def end(self, outcome: str, detail: str = "") -> None:
        self.outcome, self.detail, self.end_ns = outcome, detail, time.monotonic_ns()


class Answer:
    """Reads one HTTP answer into `result`. `is_complete` turns true once, when the outcome is known."""

    _decoder = msgspec.json.Decoder(Event)

    def __init__(self, result: StreamResult):
        self.result = result
        self.is_complete = False
        self.can_reuse_connection = False
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._rest = b""
        self._refusal = b""
        self._error_text = ""
        self._has_done_mark = False
        self._now_ns = 0

    def feed(self, data: bytes) -> None:
        """Takes what the connection has received; all of it counts as having arrived now."""
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.DecodeError) as error:
            self._complete(BROKEN, f"{type(error).__name__}: {error.__context__ or error}")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status != 200:
            self._refusal = (self._refusal + body)[:MAX_REFUSAL_BYTES]
            return
        frames = (self._rest + body).split(b"\n\n")
        self._rest = frames.pop()
        for frame in frames:
            for line in frame.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take_event(line[5:].strip())

    def on_message_complete(self) -> None:
        self.can_reuse_connection = self._parser.should_keep_alive()
        if self._status != 200:
            self._complete(f"http {self._status}", refusal_text(self._refusal))
        elif self._error_text:
            self._complete("error event", self._error_text)
        elif self.result.finish_reason is None or not self._has_done_mark:
            self._complete(BROKEN, "the answer ended without a finish reason and [DONE]")
        else:
            self._complete(OK)

    def connection_lost(self, reason: str) -> None:
        self._complete(LOST, reason)

    def _take_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._has_done_mark = True
            return
        event = self._decoder.decode(payload)
        result = self.result
        if event.token_ids:
            result.arrivals_ns.append(self._now_ns)
            result.num_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            result.finish_reason = event.finish_reason
            result.usage = event.usage
            result.timing = event.timing or {}
        if event.error is not None:
            self._error_text = str(event.error.get("message") or event.error)

    def _complete(self, outcome: str, detail: str = "") -> None:
        if not self.is_complete:
            self.is_complete = True
            self.result.end(outcome, detail)


def refusal_text(body: bytes) -> str:
    """Returns the message of an HTTP error's body, or the body itself if it is not ours."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
