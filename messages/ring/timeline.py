"""Events for the timelines of running requests, in addition to their stamps. They are informational only."""

from collections.abc import Mapping
from typing import Literal

import msgspec

WaitsFor = Literal[
    "rows",
    "tokens",
    "pages",
    "drain",
    "priority",
    "window_pages",
    "state_slots",
    "adapter",
    "adapter_slots",
    "encoding",
]
"""Why the first request of the queue got no row: all rows are in use, the step's token budget is spent, too few pages
are available, the scheduler is draining, its priority is the lowest and requests of higher priority exist, or a
resource is lacking."""

RESOURCE_TEXTS: Mapping[WaitsFor, str] = {
    "window_pages": "too few pages of layers with a window are free or can be evicted (--kv-cache-memory-gb)",
    "state_slots": "all slots for recurrent states are in use (--kv-cache-memory-gb)",
    "adapter": "its LoRA adapter is being read from disk",
    "encoding": "its images are being encoded (--encoder-workers, --image-max-tokens), or encodings of others take all "
    "memory for them (--image-cache-mb)",
    "adapter_slots": "rows use other LoRA adapters, as many as may be used at once (--max-loras)",
}
"""What `/requests` shows for the resources of `scheduler_proc/deciding/pages/resource.py`."""


class TokenizedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt of `num_tokens` tokens, which the tokenizer processed from `begun_ns` to `tokenized_ns`."""

    uid: int
    attempt: int
    begun_ns: int
    tokenized_ns: int
    num_tokens: int


class Tokenized(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → frontend: requests that were sent to the scheduler. May arrive after their first tokens."""

    rows: tuple[TokenizedRow, ...]


class ChunkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prefill chunk: the step computes tokens `start` to `end` (exclusive) of `num_tokens`.

    After a preemption, and in a continuation, `num_tokens` includes the output so far. The request entered the queue
    at `queued_ns`.
    """

    uid: int
    attempt: int
    queued_ns: int
    start: int
    end: int
    num_tokens: int


class WaitingRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request in the queue, behind `num_before` others. Its tokens fill `num_pages` pages, cached ones included.

    Prompts before it have `num_tokens_before` tokens that are not computed, cached ones included; -1 if they have not
    been counted. `num_clients_before` other clients take their turns before it. `lacks`: the resource that it lacks
    itself, if any.
    """

    uid: int
    attempt: int
    queued_ns: int
    num_before: int
    num_pages: int
    num_tokens_before: int = -1
    num_clients_before: int = 0
    lacks: WaitsFor | None = None


class DelayedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partly computed prompt that has no chunk in the step.

    `by_uid` is the request that is computing the next page it needs, 0 if decode rows and earlier prompts spent the
    step's token budget, or its own uid if its pages are being loaded from a lower tier.
    """

    uid: int
    attempt: int
    by_uid: int


class PreemptedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request that was preempted because request `by_uid` (possibly itself) needed pages."""

    uid: int
    attempt: int
    by_uid: int


class PausedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A decoding request of the lowest priority that was paused for others, or resumed. It keeps its pages."""

    uid: int
    attempt: int
    is_paused: bool


class QueueFacts(msgspec.Struct, frozen=True, array_like=True):
    """The resources available when a step was planned, and why the first request of the queue got no row.

    `num_needed_pages` is the number of pages that this request lacked, in addition to `num_promised_pages`, which are
    reserved for running rows. Both are 0 unless it waits for pages. `admitted_per_s` is the recent admission rate, 0 if
    unknown.
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
    """scheduler → detokenizer → every frontend: what a step does for the requests that are not decoding.

    Sent before a step that may be long, otherwise with its result. It leaves out decode rows; a step with nothing else
    sends none. `waiting` lists the requests that have just begun to wait and, at most once a second, all waiting ones.
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
