"""The record of one HTTP request while it is answered: its public id, its choices and its access log line."""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive

from frontend.requests.body_budget import BodyBudget, HeldBody
from frontend.requests.client import INTERNAL
from frontend.requests.generation import Generation
from runtime.logs import FIELDS

REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID_PATTERN = r"^[A-Za-z0-9._:/+=-]{1,128}\Z"
"""Ids that are safe to echo in a header and to write to a log line."""

_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)

CLIENT_LEFT = 499
"""Logged and counted, but never sent, as the status of a request whose client left before the response began."""

SHORT_NAMES = {
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "completion_tokens": "completion",
    "finish_reason": "finish",
    "ttft_ms": "ttft",
}
"""Names in the text line for the fields of a JSON line."""

log = logging.getLogger("sluice.frontend")


class RequestTrace:
    """Lives in the request's ASGI scope. `status` is 0 until a response has begun.

    `bodies`, if given, counts the request's body until the response is over.
    """

    def __init__(self, scope: Mapping[str, Any], bodies: BodyBudget | None = None):
        self.body = HeldBody(bodies)
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.request_id = _sent_id(self.headers) or secrets.token_hex(12)
        self.id_names = [REQUEST_ID_HEADER]
        """The response headers that contain the request id."""
        self.status = 0
        self.generations: list[Generation] = []
        """The choices of the request, in order."""
        self.received_ns = time.monotonic_ns()
        self.client = INTERNAL
        """Set as soon as the request has been authenticated."""
        self.limit_headers: list[tuple[bytes, bytes]] = []
        """Response headers about the limits of the client's key."""
        self.receive: Receive | None = None
        """Reports, after the body, that the client has left; `None` if it cannot leave."""
        self.images: list[bytes] = []
        """The digests of the images that are kept for this request until its response is over."""
        self.notes: dict[str, Any] = {}
        """More fields of the access log line."""

    @property
    def reply_headers(self) -> list[tuple[bytes, bytes]]:
        return [*((name, self.request_id.encode()) for name in self.id_names), *self.limit_headers]

    @property
    def shown_status(self) -> int:
        """The status of an ended response in logs and metrics."""
        return self.status or CLIENT_LEFT

    @property
    def has_client_left(self) -> bool:
        """True if the client of a finished response left before it was complete."""
        finals = [generation.final for generation in self.generations]
        has_failed = any(final is not None and final.error is not None for final in finals)
        return not self.status or (self.status == 200 and None in finals and not has_failed)

    def write_line(self, *, is_quiet: bool) -> None:
        """Writes the access log line: method, path, status, token counts, time and id.

        With `is_quiet` it is logged at level debug.
        """
        level = logging.DEBUG if is_quiet else logging.INFO
        if not log.isEnabledFor(level):
            return
        counts = _counts(self.generations) if self.generations else self.notes
        if self.client.key:
            counts["key"] = self.client.key
        if self.has_client_left:
            counts["client"] = "left"
        tokens = "".join(f" {SHORT_NAMES.get(name, name)}={value}" for name, value in counts.items())
        total_ms = round((time.monotonic_ns() - self.received_ns) / 1e6, 1)
        path, status = self.path if self.path.isprintable() else repr(self.path), self.shown_status
        what = {"method": self.method, "path": path, "status": status, **counts, "total_ms": total_ms}
        log.log(
            level,
            "%s %s %d%s total=%.1f ms id=%s",
            *(self.method, path, status, tokens, total_ms, self.request_id),
            extra={FIELDS: {**what, "request_id": self.request_id}},
        )


def _counts(generations: list[Generation]) -> dict[str, Any]:
    """Returns the summed counts of the choices. Prompt, cached tokens and reason are those of the first choice."""
    first, final = generations[0], generations[0].final
    counts: dict[str, Any] = {"uid": first.uid}
    if len(generations) > 1:
        counts["choices"] = len(generations)
    if final is not None:
        counts |= {"prompt_tokens": final.usage.prompt_tokens, "cached_tokens": final.usage.cached_tokens}
    counts["completion_tokens"] = sum(len(generation.output_ids) for generation in generations)
    if final is not None:
        counts["finish_reason"] = final.finish_reason
    first_token_ns = min((entry.first_token_ns for entry in generations if entry.first_token_ns), default=0)
    if first_token_ns:
        counts["ttft_ms"] = round((first_token_ns - first.message.stamps.received_ns) / 1e6, 1)
    return counts


def trace_of(scope: Mapping[str, Any]) -> RequestTrace:
    """Returns the trace that the application has put into the request's scope."""
    trace = scope["sluice.trace"]
    assert isinstance(trace, RequestTrace)
    return trace


def _sent_id(headers: list[tuple[bytes, bytes]]) -> str | None:
    for name, value in headers:
        if name == REQUEST_ID_HEADER:
            text = value.decode("latin-1")
            return text if _REQUEST_ID.match(text) else None
    return None
