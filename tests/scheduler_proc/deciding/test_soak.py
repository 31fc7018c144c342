"""Thousands of mixed requests through a cache that is far too small: every token right, nothing lost, nothing left."""

import random

import pytest

from scheduler_proc.deciding.drafting import drafts
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench
from tests.scheduler_proc.planned_ahead import AheadBench
from tests.scheduler_proc.simulated_drafter import AllDrafts, SimulatedDrafter
from tests.scheduler_proc.soak import MAX_MODEL_LEN, Soak


@pytest.mark.timeout(300)
def test_seven_hundred_mixed_requests_lose_nothing():
    soak = Soak(20, 700, Bench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48))
    soak.run()
    soak.check()
    assert soak.bench.gauge("preemptions") > 4
    assert soak.bench.gauge("prefix_hit_tokens") > 170
    reasons = {end.finish_reason for end in soak.bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout"}


@pytest.mark.timeout(300)
def test_drafts_that_are_right_save_steps():
    outputs, num_steps = [], []
    for error_rate in (0.0, 1.0):
        drafter = SimulatedDrafter(random.Random(4), VOCAB_SIZE, 4, error_rate)
        soak = Soak(4, 200, Bench(num_pages=200, page_size=4, max_num_batched_tokens=200, drafter=drafter))
        for uid in range(200):
            soak.bench.send(soak.make(uid))
        soak.bench.run()
        soak.check()
        assert drafter.num_proposed > 500
        outputs.append(soak.bench.inbox.tokens)
        num_steps.append(soak.bench.gauge("steps"))
    assert outputs[0] == outputs[1]
    assert num_steps[0] < 0.65 * num_steps[1]


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize(("make_bench", "sparse_chance", "min_drafts"), [(Bench, 0.0, 20), (AheadBench, 0.28, 5)])
def test_drafts_of_ngram_lookup_lose_nothing(
    make_bench: type[Bench], sparse_chance: float, min_drafts: int, adapts: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drafts, "SPARSE_CHANCE", sparse_chance)
    bench = make_bench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    is_ahead = isinstance(bench, AheadBench)
    lengths = DraftLengths() if adapts else AllDrafts()
    budget = Budget(8, 48)
    planner = DraftPlanner(bench.cache, NgramDrafter(5), lengths)
    bench.scheduler = Scheduler(
        bench.cache, bench.limits, budget, planner, bench.grammars, plans_decodes_alone=is_ahead
    )
    if isinstance(bench, AheadBench):
        bench.stepper = bench.make_stepper()
    soak = Soak(21, 400, bench)
    soak.run()
    soak.check()
    assert bench.gauge("draft_tokens") > min_drafts
    assert bench.gauge("draft_tokens") / 5 <= bench.gauge("drafts") <= bench.gauge("draft_tokens")
    assert bench.gauge("preemptions") > 0
    assert (bench.gauge("steps_ahead") > 5) == is_ahead


def test_cached_and_uncached_runs_give_the_same_tokens():
    outputs = []
    for is_sharing in (True, False):
        soak = Soak(3, 100, Bench(num_pages=24, page_size=4, max_num_batched_tokens=20, is_sharing=is_sharing))
        for uid in range(100):
            soak.bench.send(soak.make(uid))
        soak.bench.run()
        soak.check()
        outputs.append(soak.bench.inbox.tokens)
    assert outputs[0] == outputs[1]
