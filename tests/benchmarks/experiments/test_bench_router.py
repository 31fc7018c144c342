"""The simulated engines, and what the policies make of prompts that share their beginnings."""

import random

from benchmarks.experiments.engines_0056.bench_router import Engine, Machine, make_policies, simulate
from extras.whatif.traces import TraceRequest

MACHINE = Machine(prefill_rate=1000.0, token_s=0.01, num_blocks=64)


def test_an_engine_computes_what_is_not_cached_one_after_another() -> None:
    engine = Engine(MACHINE)
    assert engine.serve(TraceRequest(0.0, 1024, 10, (1, 2)), 0.0) == (0, 1.024, 1.124)
    cached, first_s, _ = engine.serve(TraceRequest(0.0, 1124, 10, (1, 2)), 1.0)
    assert (cached, round(first_s, 3)) == (1024, 1.124)
    assert engine.num_computed == 1124


def test_conversations_stay_where_they_are_cached_and_work_stays_even() -> None:
    """41 conversations of five turns, interleaved in any order; each turn continues the previous one."""
    rng = random.Random(3)
    turns = [(turn, talk) for turn in range(1, 6) for talk in rng.sample(range(41), 41)]
    trace = [
        TraceRequest(float(number), turn * 1024, 20, tuple(talk * 100 + block for block in range(turn * 2)))
        for number, (turn, talk) in enumerate(turns)
    ]
    machine = Machine(8000.0, 0.01, 1024)
    found = {name: simulate(trace, 4, machine, 0.5, choose) for name, choose in make_policies(1).items()}
    ours = found.pop("prefix and load")
    assert ours.hit_rate > 0.6
    assert ours.hit_rate > 2 * max(other.hit_rate for other in found.values())
    assert ours.imbalance < 1.3
    assert ours.ttft_mean_s <= min(other.ttft_mean_s for other in found.values())
