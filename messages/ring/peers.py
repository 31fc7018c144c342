"""Questions between the frontends of one server, so that a client gets the same answer from each of them.

The messages go directly from one frontend's socket to another's and concern no request in the ring. If one is lost, the
asking frontend goes without that answer after a short timeout.
"""

from typing import Literal

import msgspec

from messages.ring.replies import FromRing

Label = tuple[str, str]


class MetricSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sample as `/metrics` shows it; `labels` are pairs of name and value."""

    name: str
    labels: tuple[Label, ...]
    value: float


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """All samples of one metric; `kind` is its Prometheus type: counter, gauge or histogram."""

    name: str
    text: str
    kind: str
    samples: tuple[MetricSample, ...]


class ReportMetrics(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Return all metrics that this frontend counts itself. Answered with `MetricsReport`."""


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    families: tuple[MetricFamily, ...]


class CountOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Return the number of open requests. Answered with `OpenCount`."""


class OpenCount(msgspec.Struct, frozen=True, array_like=True, tag=True):
    num_requests: int


class AbortOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Abort the open requests with one of `uids` or `request_ids`, or all. Answered with `AbortedOpen`."""

    uids: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()
    is_all: bool = False
    only_of: str | None = None
    """Only those of this key."""


class AbortedOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The requests that are being aborted."""

    uids: tuple[int, ...]


class FindRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Find open and recently ended requests that match all fields; an empty field matches everything.

    Answered with `FoundRequests`: at most `limit` requests, open ones first. With `is_whole` their timelines are
    complete.
    """

    uids: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()
    state: str = ""
    stage: str = ""
    min_age_s: float = 0.0
    limit: int = 100
    is_whole: bool = False
    only_of: str | None = None
    """Only those of this key."""


class FoundRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as the JSON that `/requests` shows. `received_ns`: when it arrived."""

    received_ns: int
    has_ended: bool
    shown: bytes


class FoundRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`requests` are some of `num_found` matches. A scheduler's last message came at `last_report_ns` (0: none yet)."""

    requests: tuple[FoundRequest, ...]
    num_found: int
    last_report_ns: int = 0


class StepPlan(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A step with prefill chunks or changes of the queue, from a `ScheduleReport`. It has `num_tokens` in total."""

    planned_ns: int
    step_id: int
    num_prompt_tokens: int
    num_tokens: int
    engine: int = 1


class StepEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that produced `num_tokens` output tokens for requests of one frontend."""

    committed_ns: int
    step_id: int
    num_tokens: int
    engine: int = 1


class ReportLive(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Return the data of the live page, and record steps for a few more seconds. Answered with `LiveReport`."""


class LiveReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`requests`: JSON by uid of the oldest of `num_open` requests, and of those that ended most recently."""

    num_open: int
    requests: bytes
    plans: tuple[StepPlan, ...] = ()
    ends: tuple[StepEnd, ...] = ()


class UseResponse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Show, cancel or delete a stored response (`/v1/responses`). Answered with `UsedResponse`."""

    response_id: str
    action: Literal["show", "cancel", "delete"] = "show"
    only_of: str | None = None
    """Only one that belongs to this key."""


class UsedResponse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The JSON of the response and of its input items; both empty if this frontend does not store it."""

    response: bytes = b""
    input_items: bytes = b""


PeerQuestion = ReportMetrics | CountOpen | AbortOpen | FindRequests | ReportLive | UseResponse
PeerReply = MetricsReport | OpenCount | AbortedOpen | FoundRequests | LiveReport | UsedResponse


class PeerAsk(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → frontend: a question. No request has its `uid`, which identifies the asking frontend and call."""

    uid: int
    question: PeerQuestion


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → frontend: the reply of the frontend that assigns the uids of `block` (`messages/ring/uids.py`)."""

    uid: int
    block: int
    reply: PeerReply


ToFrontend = FromRing | PeerAsk | PeerAnswer
