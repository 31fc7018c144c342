"""The timeline of a request as its client sees it: spans in milliseconds, made from the stamps of all processes."""

import time

import msgspec

from messages.ring.requests import Stamps


class Timing(msgspec.Struct, frozen=True):
    """A span is null where one of its ends was not reached. `tokens_per_s` counts from the first token on.

    Where a process died and the request was continued, `tokenize_ms`, `queue_ms` and `prefill_ms` are those of the
    last attempt, and the others span all attempts.
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
    """1, and one more for each time that a process died and the request was continued."""


def make_timing(stamps: Stamps, *, num_tokens: int, seed: int, attempts: int = 1, first_token_ns: int = 0) -> Timing:
    """Returns the timing of a request of `num_tokens` output tokens that ends now.

    `stamps` are those of the last attempt; `first_token_ns` is given where an earlier one had the first token.
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
