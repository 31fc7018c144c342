import pytest

from frontend.metrics.request_metrics import RequestMetrics
from frontend.requests.generation import Generation
from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import SamplingParams, TokenizeMsg
from tests.frontend.frontend_run import STAMPS


def ended(*token_ids: int, is_first: bool = True, **fields: object) -> Generation:
    """A request whose last tokens came with its end, preceded by a token unless `is_first`."""
    generation = Generation(TokenizeMsg(1, 0, "a", b"", SamplingParams(50), STAMPS), "id")
    if not is_first:
        generation.add([9], "a")
        generation.last_token_ns = generation.first_token_ns
    values = {"finish_reason": "stop", "usage": Usage(30, 16, 2), "stamps": STAMPS, **fields}
    generation.finish(UserReply(1, 0, token_ids=pack_int32(token_ids), **values))  # type: ignore[arg-type]
    return generation


def test_gaps_are_between_a_requests_own_tokens():
    metrics = RequestMetrics(512)
    metrics.record_step(1_000_000_000, {0: 3})
    assert (metrics.num_output_tokens, metrics.token_gaps_s.buckets()[-1][1]) == (3, 0)
    metrics.record_step(1_020_000_000, {1_000_000_000: 2, 0: 1})
    assert (metrics.num_output_tokens, metrics.token_gaps_s.buckets()[-1][1]) == (6, 2)
    assert metrics.token_gaps_s.total == pytest.approx(0.04)


def test_an_end_counts_its_tokens_spans_and_usage():
    metrics = RequestMetrics(512)
    metrics.record_end(ended(5, is_first=False))
    assert metrics.num_ended == {"stop": 1}
    assert (metrics.num_output_tokens, metrics.token_gaps_s.buckets()[-1][1]) == (1, 1)
    assert (metrics.prompt_tokens.total, metrics.num_cached_tokens, metrics.output_tokens.total) == (30, 16, 2)
    assert metrics.max_tokens.total == 50
    assert metrics.queue_s.total == pytest.approx(0.008)
    assert metrics.prefill_s.total == pytest.approx(0.04)
    assert metrics.decode_s.total == pytest.approx(0.1)
    assert metrics.inference_s.total == pytest.approx(0.14)
    assert [
        metrics.first_token_s.buckets()[-1][1],
        metrics.per_token_s.buckets()[-1][1],
        metrics.total_s.buckets()[-1][1],
    ] == [1, 1, 1]


def test_a_request_of_one_token_has_a_first_one_and_no_gap():
    metrics = RequestMetrics(512)
    metrics.record_end(ended(5))
    assert (metrics.first_token_s.buckets()[-1][1], metrics.token_gaps_s.buckets()[-1][1]) == (1, 0)
    assert metrics.per_token_s.buckets()[-1][1] == 0


def test_a_refusal_counts_as_an_error_and_as_nothing_else():
    metrics = RequestMetrics(512)
    metrics.record_end(ended(finish_reason="error", error=ErrorInfo(400, "too long"), usage=Usage()))
    assert metrics.num_ended == {"error": 1}
    assert [metrics.total_s.buckets()[-1][1], metrics.prompt_tokens.buckets()[-1][1], metrics.num_output_tokens] == [
        0,
        0,
        0,
    ]
