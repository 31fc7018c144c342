"""The benchmark of the tiers: which part of a trace it serves, and how fast."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.experiments.kv_tiers_0064.bench_kv_tiers import (
    at_rate,
    make_part,
    sample_conversations,
    share_asked_for_again,
    time_beside,
)
from extras.whatif.traces import Arrival, TraceRequest
from messages.errors import UsageError


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


def test_a_part_of_a_model_has_the_same_part_of_its_layers_and_vocabulary() -> None:
    part = make_part("qwen2-0.5b", 2)
    assert (part["num_hidden_layers"], part["vocab_size"], part["num_key_value_heads"]) == (2, 151936 // 12, 2)
    assert make_part("gpt2-124m", 3)["n_layer"] == 3
    for num_layers in (0, 25):
        with pytest.raises(UsageError, match="has 1 to 24"):
            make_part("qwen2-0.5b", num_layers)


def test_a_clock_beside_a_store_stands_still_in_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def spend(seconds: float) -> str:
        nonlocal now_s
        now_s += seconds
        return "done"

    monkeypatch.setattr(time, "thread_time", lambda: now_s)
    store = SimpleNamespace(touch=spend, put=spend, estimate_s=spend, load=spend, pop_loaded=spend)
    clock = time_beside(cast("Any", store))
    spend(1.0)
    assert [store.put(5.0), store.load(7.0), store.pop_loaded(9.0)] == ["done"] * 3
    spend(2.0)
    assert clock() == 3.0
