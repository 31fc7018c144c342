"""Schedulers of every shape under random requests: every token right, nothing lost, nothing left.

A shape is the sizes of the cache and of a step, how steps follow each other, whatever rows need besides pages, drafts,
and steps or rows that fail.
"""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_proc.deciding.pages.page_keys import MIN_PAGE_TOKENS
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench
from tests.scheduler_proc.overlapped import OverlappedBench
from tests.scheduler_proc.planned_ahead import AheadBench
from tests.scheduler_proc.simulated_adapters import SimulatedAdapters, make_adapter
from tests.scheduler_proc.simulated_drafter import SimulatedDrafter
from tests.scheduler_proc.soak import MAX_MODEL_LEN, Soak

SIZES = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 4, 16]),
        "max_num_seqs": st.sampled_from([1, 3, 8, 32]),
        "max_num_batched_tokens": st.sampled_from([1, 7, 32, 256]),
        "is_sharing": st.booleans(),
    }
)
KINDS_OF_STEPS = st.sampled_from([Bench, Bench, OverlappedBench, AheadBench])
NEEDS = st.sets(st.sampled_from(["windows", "states", "adapters"]), max_size=3)
DRAFTS = st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.3, 1.0]), st.booleans())
"""The most drafts of a row, the share of wrong ones, and whether some are withheld."""


def windows_for(chance: random.Random, page_size: int, max_num_batched_tokens: int, num_pages: int) -> tuple[int, int]:
    """Returns a window, and enough window pages for one request, now and then for more."""
    window = chance.choice((1, 5, 8, 16, 23))
    least = 1 + -(-(window - 1) // page_size) + -(-max_num_batched_tokens // page_size)
    return window, min(num_pages, least + chance.choice((0, 0, 3, 10)))


@example(
    seed=438401,  # a short prompt passes a long one, which then needs its pages in the same plan
    sizes={"page_size": 1, "max_num_seqs": 3, "max_num_batched_tokens": 7, "is_sharing": False},
    num_spare=0,
    bench_type=OverlappedBench,
    needs={"windows", "states"},
    drafts=None,
    is_faulty=True,
    rich_share=0.0,
)
@given(
    seed=st.integers(0, 2**32),
    sizes=SIZES,
    num_spare=st.integers(0, 12),
    bench_type=KINDS_OF_STEPS,
    needs=NEEDS,
    drafts=st.none() | DRAFTS,
    is_faulty=st.booleans(),
    rich_share=st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(max_examples=50, deadline=None)
def test_every_token_is_right(seed, sizes, num_spare, bench_type, needs, drafts, is_faulty, rich_share):
    chance = random.Random(seed)
    num_pages = MAX_MODEL_LEN // sizes["page_size"] + num_spare
    attached = {}
    if "windows" in needs:
        attached["windows"] = windows_for(chance, sizes["page_size"], sizes["max_num_batched_tokens"], num_pages)
    if "states" in needs:
        attached["states"] = chance.choice((2, 3, 9, 40)), chance.choice((1, 2, 5, 100))
    if "adapters" in needs:
        attached["adapters"] = SimulatedAdapters(chance.choice((1, 2, 5)), chance).slots
    has_drafts = drafts is not None and bench_type is Bench
    if has_drafts:
        attached["drafter"] = SimulatedDrafter(chance, VOCAB_SIZE, *drafts[:2])
    bench = bench_type(num_pages=num_pages, max_model_len=MAX_MODEL_LEN, **sizes, **attached)
    bench.runner.withholds = chance if has_drafts and drafts[2] else None
    if is_faulty:
        bench.runner.nan = {42}
    if is_faulty and bench_type is not Bench:
        bench.runner.poison = {41}
        bench.device.fails = lambda where: chance.random() < 0.05
    own = [make_adapter(number) for number in range(chance.choice((1, 3, 9)))] if "adapters" in needs else []
    span_share = chance.choice((0.0, 0.5)) if sizes["page_size"] >= MIN_PAGE_TOKENS else 0.0
    soak = Soak(seed, 12, bench, rich_share, own, span_share)
    soak.run()
    soak.check()
    if "windows" in needs:
        assert bench.gauge("window_pages_in_use") == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("needs", "evicted"),
    [({"windows": (9, 30)}, "window_pages_evicted"), ({"states": (16, 3)}, "state_checkpoints_evicted")],
    ids=["windows", "states"],
)
def test_hundreds_of_mixed_requests_lose_nothing(needs, evicted):
    bench = Bench(60, 4, MAX_MODEL_LEN, max_num_batched_tokens=48, **needs)
    soak = Soak(20, 400, bench)
    soak.run()
    soak.check()
    assert bench.gauge("preemptions") > 0
    assert bench.gauge("prefix_hit_tokens") > 50
    assert bench.gauge(evicted) > 100
