"""Thousands of mixed requests through a cache that is far too small: every token right, nothing lost, nothing left."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.scheduler import Scheduler
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench
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


@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 4, 16]),
    num_spare=st.integers(0, 12),
    max_num_seqs=st.sampled_from([1, 3, 8, 32]),
    max_num_batched_tokens=st.sampled_from([1, 7, 32, 256]),
    is_sharing=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_every_shape_of_scheduler_is_right(
    seed, page_size, num_spare, max_num_seqs, max_num_batched_tokens, is_sharing
):
    bench = Bench(
        num_pages=MAX_MODEL_LEN // page_size + num_spare,
        page_size=page_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        is_sharing=is_sharing,
    )
    soak = Soak(seed, 12, bench)
    soak.run()
    soak.check()


@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 4, 16]),
    num_spare=st.integers(0, 12),
    max_num_seqs=st.sampled_from([1, 3, 8, 32]),
    max_num_batched_tokens=st.sampled_from([1, 7, 32, 256]),
    max_drafts=st.integers(0, 4),
    error_rate=st.sampled_from([0.0, 0.2, 1.0]),
    withholds=st.booleans(),
    is_faulty=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_rows_of_no_to_five_tokens_a_step_get_the_same_output(
    seed, page_size, num_spare, max_num_seqs, max_num_batched_tokens, max_drafts, error_rate, withholds, is_faulty
):
    chance = random.Random(seed)
    bench = Bench(
        num_pages=MAX_MODEL_LEN // page_size + num_spare,
        page_size=page_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        drafter=SimulatedDrafter(chance, VOCAB_SIZE, max_drafts, error_rate),
    )
    bench.runner.withholds = chance if withholds else None
    if is_faulty:
        bench.runner.nan = {41, 42}
    soak = Soak(seed, 12, bench)
    soak.run()
    soak.check()


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
def test_drafts_of_ngram_lookup_lose_nothing(adapts):
    bench = Bench(num_pages=40, page_size=4, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    lengths = DraftLengths() if adapts else AllDrafts()
    budget = Budget(8, 48)
    planner = DraftPlanner(bench.cache, NgramDrafter(5), lengths)
    bench.scheduler = Scheduler(bench.cache, bench.limits, budget, planner, bench.grammars)
    soak = Soak(21, 300, bench)
    soak.run()
    soak.check()
    assert bench.gauge("draft_tokens") > 20
    assert bench.gauge("draft_tokens") / 5 <= bench.gauge("drafts") <= bench.gauge("draft_tokens")
    assert bench.gauge("preemptions") > 0


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
