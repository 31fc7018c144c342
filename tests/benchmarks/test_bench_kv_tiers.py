"""The benchmark of the tiers: which part of a trace it serves, and how fast."""

from benchmarks.bench_kv_tiers import at_rate, sample_conversations, share_asked_for_again
from whatif.traces import Arrival, TraceRequest


def test_a_sample_has_whole_conversations_and_their_share_of_what_is_asked_for_again() -> None:
    blocks = [(0, 1), (0, 2, 7), (0, 3), (0, 1, 4), (0, 2), (0, 3, 5), (0, 1, 4, 6), (0,)]
    trace = [TraceRequest(float(at_s), 1, 1, block_ids) for at_s, block_ids in enumerate(blocks)]
    sample = sample_conversations(trace, 2)
    assert [one.at_s for one in sample] == [0.0, 2.0, 3.0, 5.0, 6.0]
    assert share_asked_for_again(sample) == round(8 / 14, 3)
    assert sample_conversations(trace, 1) == trace


def test_arrivals_keep_their_rhythm_at_another_rate() -> None:
    arrivals = [Arrival([1] * 50, 1, at_s) for at_s in (5.0, 6.0, 7.0, 9.0)]
    assert [one.at_s for one in at_rate(arrivals, 2.0)] == [0.0, 0.5, 1.0, 2.0]
