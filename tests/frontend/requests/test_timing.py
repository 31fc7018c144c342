import time

from frontend.requests.timing import make_timing
from messages.ring.requests import Stamps
from tests.frontend.frontend_run import STAMPS


def test_spans_are_in_milliseconds():
    timing = make_timing(STAMPS, num_tokens=11, seed=5)
    assert (timing.tokenize_ms, timing.queue_ms, timing.prefill_ms) == (1.0, 8.0, 40.0)
    assert (timing.ttft_ms, timing.decode_ms, timing.tokens_per_s) == (50.0, 100.0, 100.0)
    assert timing.seed == 5


def test_a_stage_that_was_not_reached_is_null():
    timing = make_timing(Stamps(received_ns=time.monotonic_ns() - 5_000_000), num_tokens=0, seed=0)
    assert (timing.queue_ms, timing.ttft_ms, timing.decode_ms, timing.tokens_per_s) == (None, None, None, None)
    assert timing.total_ms is not None
    assert timing.total_ms >= 5


def test_one_token_has_no_rate():
    assert make_timing(STAMPS, num_tokens=1, seed=0).tokens_per_s is None


def test_a_continued_request_counts_from_its_first_token():
    earlier_ns = STAMPS.received_ns + 20_000_000
    timing = make_timing(STAMPS, num_tokens=14, seed=5, attempts=2, first_token_ns=earlier_ns)
    assert (timing.ttft_ms, timing.decode_ms, timing.tokens_per_s) == (20.0, 130.0, 100.0)
    assert (timing.queue_ms, timing.prefill_ms) == (8.0, 40.0)
    assert timing.attempts == 2
