"""The cost of timelines: each part is measured on what really happens."""

import pytest

from benchmarks import bench_timelines


def test_each_part_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench_timelines, "REPEATS", 1)
    monkeypatch.setattr(bench_timelines, "NUM_WAITING", 10)
    cost = bench_timelines.measure()
    assert cost.per_decode_step_us["scheduler"] > 0
    assert set(cost.per_report_us) == {"scheduler", "detokenizer", "frontend"}


def test_a_served_request_has_a_whole_timeline():
    served = bench_timelines.Served()
    timeline = served.serve().timeline
    stages = [span.stage for span in timeline.spans(0)]
    assert {"tokenize", "queue", "prefill", "decode", "detokenize", "deliver", "send"} <= set(stages)
    assert served.timelines.num_live == 0
