"""What timelines of requests are made from, beside their stamps: it is told while they go on, and changes nothing."""

from typing import Literal

import msgspec

WaitsFor = Literal["rows", "tokens", "pages", "drain", "priority"]
"""Why the first request of the queue has no row: all rows are in use; the step's tokens are used up; too few pages are
available; the scheduler is draining; its priority is the lowest and there are requests of higher priority."""


class TokenizedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt of `num_tokens`, in the tokenizer's hands from `begun_ns` to `tokenized_ns`."""

    uid: int
    attempt: int
    begun_ns: int
    tokenized_ns: int
    num_tokens: int


class Tokenized(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: these requests have gone on to the scheduler. It may come later than their tokens."""

    rows: tuple[TokenizedRow, ...]


class ChunkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The step computes tokens `start` to `end` (exclusive) of `num_tokens`: the prompt and, after a preemption or in a
    continuation, the output so far. The scheduler took the request at `queued_ns`."""

    uid: int
    attempt: int
    queued_ns: int
    start: int
    end: int
    num_tokens: int


class WaitingRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request in the queue. `num_before` others go before it; its tokens fill `num_pages`, cached ones included."""

    uid: int
    attempt: int
    queued_ns: int
    num_before: int
    num_pages: int


class DelayedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt in work that has no chunk in the step: request `by_uid` computes the page that it needs next, or (0)
    decode rows and earlier prompts have spent the step's tokens, or (its own uid) its pages come from a lower tier."""

    uid: int
    attempt: int
    by_uid: int


class PreemptedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that is in the queue again, because request `by_uid` (it may be itself) needed pages."""

    uid: int
    attempt: int
    by_uid: int


class PausedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request of the lowest priority was paused for others while decoding, or resumed; it keeps its pages."""

    uid: int
    attempt: int
    is_paused: bool


class QueueFacts(msgspec.Struct, frozen=True, array_like=True):
    """What there was when a step was planned, and why the first of the queue (if there is one) got no row.

    `num_needed_pages` is what that one needed beside `num_promised_pages`, which running rows are still to get; both
    are 0 unless it waits for pages. `admitted_per_s` is the rate of the latest admissions, 0 where it is unknown.
    """

    waits_for: WaitsFor | None
    num_waiting: int
    num_running: int
    max_num_seqs: int
    num_step_tokens: int
    max_num_batched_tokens: int
    num_free_pages: int
    num_evictable_pages: int
    num_needed_pages: int
    num_promised_pages: int
    admitted_per_s: float


class ScheduleReport(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → every frontend: what the plan of a step means for requests that do not decode.

    It leaves before a step that may be long, else with its result. Decode rows are not in it, and a step that has
    nothing else sends none. `waiting` are requests that have just begun to wait and, at most once a second, all that
    do.
    """

    planned_ns: int
    facts: QueueFacts
    chunks: tuple[ChunkRow, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    delayed: tuple[DelayedRow, ...] = ()
    preempted: tuple[PreemptedRow, ...] = ()
    step_id: int = 0
    engine: int = 1
    paused: tuple[PausedRow, ...] = ()
