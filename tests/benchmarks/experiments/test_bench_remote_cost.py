from benchmarks.bench_ring_cost import RingCost
from benchmarks.experiments.remote_engines_0067.bench_remote_cost import BACK, IPC, TCP, compare
from benchmarks.load.report import Quantiles


def turn(back_ms: float, **cpu_us: float) -> RingCost:
    back = Quantiles(count=1, mean_ms=0, p50_ms=back_ms, p90_ms=0, p99_ms=0, max_ms=0)
    names = {"proxy": "extras.remote.proxy", "joiner": "benchmarks.experiments.remote_engines_0067.paced_joiner"}
    per_token = {names.get(name, name): value for name, value in cpu_us.items()}
    return RingCost(1, 5.0, 1, 100.0, {BACK: back}, per_token, 1)


def test_only_what_stands_between_engine_and_ring_is_counted_and_rounds_are_compared_in_pairs():
    here = [turn(1.0, frontend=50.0), turn(9.0, frontend=50.0), turn(1.0, frontend=50.0)]
    joined = [turn(ms, frontend=70.0, proxy=10.0, joiner=20.0, scheduler_proc=999.0) for ms in (1.4, 9.5, 1.3)]
    turns = {(1, IPC): here, (1, TCP): joined}
    cost = compare(turns, 1, TCP)
    assert (cost.cpu_us_more, cost.latency_ms_more) == (30.0, 0.4)
    assert "scheduler_proc" not in cost.cpu_us_per_token
    assert (compare(turns, 1, IPC).cpu_us_more, compare(turns, 1, IPC).latency_ms_more) == (0.0, 0.0)
