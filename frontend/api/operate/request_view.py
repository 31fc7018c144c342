"""A request in `/requests`: its entry in the list, and its whole timeline."""

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from frontend.api.operate.wait_reasons import Waiting
from frontend.requests.generation import Generation
from frontend.requests.timeline import WAITING_STAGES, Span, Stage, Timeline
from messages.ring.replies import FinishReason

RequestState = Literal["waiting", "running", "finished"]


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a request, without durations. Counts are null until they are known.

    `waits`: the reason why it makes no progress, if so. `choice`: its index among the choices of its HTTP request.
    """

    uid: int
    request_id: str
    choice: int
    path: str
    frontend: str
    state: RequestState
    stage: Stage | None
    """Null after the request has ended."""
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    priority: int
    attempts: int
    finish_reason: FinishReason | None
    waits: Waiting | None
    engine: int
    """The number of the scheduler that has or last had the request (`--data-parallel`)."""


class RequestLine(RequestFacts, frozen=True, kw_only=True):
    """`age_s`: from arrival until now or the end. `stage_s`: since the current stage began."""

    age_s: float
    stage_s: float | None


class StageView(msgspec.Struct, frozen=True):
    """One stage. `begin_ms` counts from arrival; the stages are contiguous and add up to the total time."""

    stage: Stage
    attempt: int
    begin_ms: float
    duration_ms: float


class ChunkView(msgspec.Struct, frozen=True):
    """The prefill of tokens `start` to `end` (exclusive), planned at `begin_ms`."""

    begin_ms: float
    start: int
    end: int


class RequestTimeline(RequestLine, frozen=True, kw_only=True):
    """`step_ends_ms`: ends of the steps that produced its tokens; every n-th for long outputs.

    `total_ms` counts up to now if the request is open. `tokens_to_compute`: tokens of the prompt (and output so far),
    cached ones included.
    """

    total_ms: float
    stages: list[StageView]
    tokens_to_compute: int | None
    chunks: list[ChunkView]
    step_ends_ms: list[float]


def state_of(timeline: Timeline) -> RequestState:
    if timeline.outcome is not None:
        return "finished"
    return "waiting" if timeline.stage in WAITING_STAGES else "running"


def find_facts(
    timeline: Timeline, generation: Generation | None, waits: Waiting | None, frontend: str
) -> dict[str, Any]:
    """Returns the `RequestFacts` of an open or ended (`generation` is None) request, by field name."""
    outcome = timeline.outcome
    if generation is not None:
        num_output_tokens = len(generation.output_ids)
    else:
        num_output_tokens = outcome.num_output_tokens if outcome is not None else 0
    return {
        "uid": timeline.uid,
        "request_id": timeline.request_id,
        "choice": timeline.index,
        "path": timeline.path,
        "frontend": frontend,
        "state": state_of(timeline),
        "stage": None if outcome is not None else timeline.stage,
        "prompt_tokens": timeline.prompt_tokens,
        "cached_tokens": timeline.cached_tokens,
        "output_tokens": num_output_tokens,
        "priority": timeline.priority,
        "attempts": timeline.attempt + 1,
        "finish_reason": None if outcome is None else outcome.finish_reason,
        "waits": waits,
        "engine": timeline.engine,
    }


def make_line(
    timeline: Timeline, generation: Generation | None, waits: Waiting | None, *, frontend: str
) -> RequestLine:
    """Returns the list entry of an open or ended (`generation` is None) request."""
    now_ns = time.monotonic_ns()
    return RequestLine(
        **find_facts(timeline, generation, waits, frontend),
        age_s=_seconds(timeline.received_ns, timeline.end_ns or now_ns),
        stage_s=None if timeline.outcome is not None else _seconds(timeline.stage_begin_ns, now_ns),
    )


def make_timeline(line: RequestLine, timeline: Timeline, step_ends_ns: Sequence[int]) -> RequestTimeline:
    """Returns the whole timeline of the request with this list entry."""
    spans = timeline.spans(time.monotonic_ns())
    begin_ns = timeline.received_ns
    fields = {name: getattr(line, name) for name in RequestLine.__struct_fields__}
    return RequestTimeline(
        **fields,
        total_ms=_ms(begin_ns, spans[-1].end_ns),
        stages=[_stage_view(span, begin_ns) for span in spans],
        tokens_to_compute=timeline.num_to_compute or None,
        chunks=[ChunkView(_ms(begin_ns, chunk.planned_ns), chunk.start, chunk.end) for chunk in timeline.chunks],
        step_ends_ms=[_ms(begin_ns, end_ns) for end_ns in step_ends_ns],
    )


def _stage_view(span: Span, begin_ns: int) -> StageView:
    return StageView(span.stage, span.attempt, _ms(begin_ns, span.begin_ns), _ms(span.begin_ns, span.end_ns))


def _ms(begin_ns: int, end_ns: int) -> float:
    return round((end_ns - begin_ns) / 1e6, 3)


def _seconds(begin_ns: int, end_ns: int) -> float:
    return round((end_ns - begin_ns) / 1e9, 6)
