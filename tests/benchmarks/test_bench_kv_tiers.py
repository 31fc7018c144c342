"""The benchmark of the tiers: how it takes the times of a trace that tells them in steps."""

from benchmarks.bench_kv_tiers import at_load, spread_steps
from whatif.traces import Arrival, TraceRequest


def test_requests_of_one_time_are_spread_until_the_next() -> None:
    trace = [TraceRequest(at_s, index, 1) for index, at_s in enumerate((0.0, 0.0, 0.0, 3.0, 9.0, 9.0))]
    spread = spread_steps(trace)
    assert [one.at_s for one in spread] == [0.0, 1.0, 2.0, 3.0, 9.0, 9.0]
    assert [one.num_input for one in spread] == [0, 1, 2, 3, 4, 5]


def test_a_load_is_prompt_tokens_a_second() -> None:
    arrivals = [Arrival([1] * 50, 1, at_s) for at_s in (5.0, 6.0, 7.0, 9.0)]
    assert [one.at_s for one in at_load(arrivals, 100.0)] == [0.0, 0.5, 1.0, 2.0]
