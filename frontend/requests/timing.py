"""The timing of a request for its client: spans in milliseconds, in the reply and in the `Server-Timing` header."""

import time
from collections.abc import Sequence

import msgspec

from frontend.requests.generation import Generation
from frontend.requests.timelines import sum_stages
from messages.ring.requests import Stamps

SERVER_TIMING_HEADER = b"server-timing"


class Timing(msgspec.Struct, frozen=True):
    """A span is null if one of its ends was not reached. `tokens_per_s` counts from the first token on.

    If the request was continued after a process died, `tokenize_ms`, `queue_ms` and `prefill_ms` are those of the last
    attempt; the other spans include all attempts.
    """

    tokenize_ms: float | None
    queue_ms: float | None
    """From the scheduler's queue to the first step."""
    prefill_ms: float | None
    """From the first step to the first token."""
    ttft_ms: float | None
    """From the arrival of the request to the first token."""
    decode_ms: float | None
    """From the first token to the last."""
    total_ms: float | None
    """From the arrival of the request to the writing of its last event."""
    tokens_per_s: float | None
    seed: int
    attempts: int
    """1 plus the number of times that the request was continued after a process died."""


def make_timing(stamps: Stamps, *, num_tokens: int, seed: int, attempts: int = 1, first_token_ns: int = 0) -> Timing:
    """Returns the timing of a request that ends now, with `num_tokens` output tokens.

    `stamps` are those of the last attempt. `first_token_ns` is set if an earlier attempt produced the first token.
    """
    first_token_ns = first_token_ns or stamps.first_token_ns
    decode_ms = _span_ms(first_token_ns, stamps.finished_ns)
    return Timing(
        tokenize_ms=_span_ms(stamps.received_ns, stamps.tokenized_ns),
        queue_ms=_span_ms(stamps.queued_ns, stamps.first_scheduled_ns),
        prefill_ms=_span_ms(stamps.first_scheduled_ns, stamps.first_token_ns),
        ttft_ms=_span_ms(stamps.received_ns, first_token_ns),
        decode_ms=decode_ms,
        total_ms=_span_ms(stamps.received_ns, time.monotonic_ns()),
        tokens_per_s=round((num_tokens - 1) / decode_ms * 1e3, 3) if decode_ms and num_tokens > 1 else None,
        seed=seed,
        attempts=attempts,
    )


def _span_ms(began_ns: int, ended_ns: int) -> float | None:
    return round((ended_ns - began_ns) / 1e6, 3) if began_ns and ended_ns else None


def server_timing(choices: Sequence[Generation]) -> bytes:
    """Returns the value of `Server-Timing`: the stages of the choice that ended last, in milliseconds, and their sum.

    Call it when all choices have ended, just before the reply is written: writing is not included.
    """
    now_ns = time.monotonic_ns()
    timeline = max((generation.timeline for generation in choices), key=lambda each: each.stage_begin_ns)
    entries = [f"{stage};dur={ms:.3f}" for stage, ms in sum_stages(timeline.spans(now_ns)).items()]
    total_ms = (now_ns - timeline.received_ns) / 1e6
    return ", ".join([*entries, f"total;dur={total_ms:.3f}"]).encode()
