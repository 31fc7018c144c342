"""Capacities, and the setting that is recommended."""

import pytest

from extras.whatif.capacity import Capacity, find_capacity
from extras.whatif.outcome import Outcome, Quantiles
from extras.whatif.recommendation import doubt_of, recommend
from extras.whatif.settings import Setting
from messages.errors import UsageError

LATENCY = Quantiles(1.0, 2.0, 3.0)


def outcome(num_seqs: int, num_pages: int, p99_ms: float, waits: dict[str, int] | None = None, preemptions: int = 0):
    return Outcome(
        setting=Setting(num_seqs, num_pages, 512),
        num_requests=100,
        num_steps=200,
        seconds=10.0,
        ttft=LATENCY,
        inter_token=LATENCY,
        e2e=Quantiles(1.0, 2.0, p99_ms),
        requests_per_s=10.0,
        output_tokens_per_s=100.0,
        num_preemptions=preemptions,
        prefix_hit_rate=0.0,
        waits=waits or {},
    )


@pytest.mark.parametrize("begin", [0.3, 7.0, 10.0, 200.0])
def test_the_capacity_is_where_the_latency_passes_the_limit(begin: float):
    found = find_capacity(lambda rate: 100 if rate <= 10 else 1000, begin, limit_ms=500)
    assert 10 * 0.95 < found.requests_per_s <= 10
    assert not found.is_open
    assert [rate for rate, _ in found.curve] == sorted({rate for rate, _ in found.curve})
    assert (found.requests_per_s, 100) in found.curve


def test_a_limit_that_is_never_or_always_passed():
    always = find_capacity(lambda _: 1000, 1.0, limit_ms=500)
    assert (always.requests_per_s, always.is_open) == (0.0, False)
    never = find_capacity(lambda _: 100, 1.0, limit_ms=500)
    assert never.is_open
    assert never.requests_per_s == max(rate for rate, _ in never.curve)


def test_requests_that_all_come_at_once_have_no_rate():
    with pytest.raises(UsageError, match="all of these arrive at once"):
        find_capacity(lambda _: 100, 0.0, limit_ms=500)


def test_the_lowest_latency_is_recommended_with_what_requests_waited_for():
    text = recommend([outcome(64, 2000, 900.0), outcome(128, 2000, 500.0, {"pages": 40, "rows": 2}, 7)], {}, 0.0)
    assert text.startswith("--max-num-seqs 128 --num-pages 2000 ")
    assert "500 ms; the next best has 900 ms" in text
    assert "40% for pages (--num-pages), 2% for a row (--max-num-seqs); 7 preemptions" in text


def test_of_equal_settings_the_smaller_cache_is_recommended():
    text = recommend([outcome(64, 4000, 500.0), outcome(64, 1000, 502.0), outcome(64, 500, 900.0)], {}, 0.0)
    assert text.startswith("--max-num-seqs 64 --num-pages 1000 ")
    assert "no smaller cache: 1 more" in text
    assert "no request had to wait" in text


@pytest.mark.parametrize(("error", "is_notified"), [(0.49, False), (-0.51, True), (1.69, True)])
def test_nothing_is_recommended_where_the_recordings_own_settings_are_far_off(error: float, is_notified: bool):
    reported = doubt_of({"TTFT p50": 0.1, "TTFT p90": error})
    assert (f"TTFT p90 is {error:+.0%} off. Beyond 50% the simulation" in reported) == is_notified
    assert bool(reported) == is_notified
    assert doubt_of({}) == ""


def test_with_a_limit_the_largest_capacity_is_recommended():
    outcomes = [outcome(64, 2000, 500.0), outcome(128, 2000, 900.0)]
    capacities = {
        one.setting: Capacity(rate, ((rate, 400.0),)) for one, rate in zip(outcomes, (10.0, 14.0), strict=True)
    }
    text = recommend(outcomes, capacities, 0.5)
    assert text.startswith("--max-num-seqs 128 ")
    assert "serves 14.00 requests/s with a p99 TTFT of at most 0.5 s; the next best 10.00" in text
