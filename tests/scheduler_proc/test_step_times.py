"""The distributions of steps."""

from messages.control.histograms import BOUNDS
from scheduler_proc.step_times import StepTimes
from tests.scheduler_proc.clients import Bench, user_msg


def test_steps_are_counted_by_time_rows_and_tokens():
    bench, times = Bench(num_pages=64, max_num_batched_tokens=64), StepTimes()
    bench.send(user_msg(1, [1] * 30, 2, ignore_eos=True), user_msg(2, [2] * 20, 2, ignore_eos=True))
    for seconds in (0.02, 0.0005):
        bench.step()
        times.add(bench.runner.batches[-1], seconds)
    counts = times.counts()
    assert counts.keys() == BOUNDS.keys() - {"grammar_seconds", "image_seconds"}
    assert {name: each.total for name, each in counts.items()} == {
        "step_seconds": 0.0205,
        "step_rows": 4,
        "step_tokens": 52,
    }
    assert {name: sum(each.counts) for name, each in counts.items()} == dict.fromkeys(counts, 2)
    assert counts["step_rows"].counts[BOUNDS["step_rows"].index(2)] == 2
    assert counts["step_tokens"].counts[BOUNDS["step_tokens"].index(64)] == 1
    assert counts["step_seconds"].counts[BOUNDS["step_seconds"].index(0.025)] == 1
