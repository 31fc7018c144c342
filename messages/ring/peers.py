"""What the frontends of one server ask each other, so that a client gets the same answer whichever has its connection.

They go straight from one frontend's socket to another's and are about no request in the ring: one that is lost costs an
answer, which the asker does not wait for longer than a moment.
"""

from typing import Literal

import msgspec

Label = tuple[str, str]


class MetricSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sample as `/metrics` shows it; `labels` are names with values."""

    name: str
    labels: tuple[Label, ...]
    value: float


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """All samples of one metric; `kind` is Prometheus's name for it: counter, gauge or histogram."""

    name: str
    text: str
    kind: str
    samples: tuple[MetricSample, ...]


class ReportMetrics(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All that this frontend counts itself. Answered with `MetricsReport`."""


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    families: tuple[MetricFamily, ...]


class CountOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How many requests are open. Answered with `OpenCount`."""


class OpenCount(msgspec.Struct, frozen=True, array_like=True, tag=True):
    num_requests: int


class AbortOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the open requests with one of `uids` or `request_ids`, or all of them. Answered with `AbortedOpen`."""

    uids: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()
    is_all: bool = False


class AbortedOpen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The requests whose end was asked for."""

    uids: tuple[int, ...]


class FindRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Which requests, open or ended of late, are like this; an empty field asks for nothing. Answered with
    `FoundRequests`: at most `limit`, the open ones first.

    With `is_whole` their whole timelines are wanted.
    """

    uids: tuple[int, ...] = ()
    request_ids: tuple[str, ...] = ()
    state: str = ""
    stage: str = ""
    min_age_s: float = 0.0
    limit: int = 100
    is_whole: bool = False


class FoundRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request as JSON: what `/requests` shows of it. `received_ns`: when it arrived."""

    received_ns: int
    has_ended: bool
    shown: bytes


class FoundRequests(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`num_found` are like that, of which `requests` are some. The scheduler was heard `heard_ns` last, 0: never."""

    requests: tuple[FoundRequest, ...]
    num_found: int
    heard_ns: int = 0


class StepPlan(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A step with prompt chunks or news of the queue, as a `ScheduleReport` told of it; it has `num_tokens` in all."""

    planned_ns: int
    step_id: int
    num_prompt_tokens: int
    num_tokens: int
    engine: int = 1


class StepEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that gave requests of one frontend `num_tokens` output tokens."""

    committed_ns: int
    step_id: int
    num_tokens: int
    engine: int = 1


class ReportLive(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the live page shows. Answered with `LiveReport`; whoever is asked notes steps for some seconds more."""


class LiveReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """`requests`: JSON, by uid, of the oldest of `num_open` requests and the latest that have ended."""

    num_open: int
    requests: bytes
    plans: tuple[StepPlan, ...] = ()
    ends: tuple[StepEnd, ...] = ()


class UseResponse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Show, cancel or delete a stored response (`/v1/responses`). Answered with `UsedResponse`."""

    response_id: str
    action: Literal["show", "cancel", "delete"] = "show"


class UsedResponse(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """JSON: the response, and the items that it answers; both empty where it is not stored there."""

    response: bytes = b""
    input_items: bytes = b""


PeerQuestion = ReportMetrics | CountOpen | AbortOpen | FindRequests | ReportLive | UseResponse
PeerReply = MetricsReport | OpenCount | AbortedOpen | FoundRequests | LiveReport | UsedResponse


class PeerAsk(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → frontend: `uid`, which no request has, finds the way back and the asker."""

    uid: int
    question: PeerQuestion


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → frontend: the reply of the frontend that gives the uids of `block` (`messages/ring/uids.py`)."""

    uid: int
    block: int
    reply: PeerReply
