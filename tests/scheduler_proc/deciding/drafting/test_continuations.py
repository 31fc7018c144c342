"""Continuations from other requests, compared with a search over all of them."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.deciding.drafting.continuations import Continuation
from scheduler_proc.deciding.drafting.drafts import NgramDrafter
from scheduler_proc.deciding.drafting.match_rates import CONTINUATION, MatchRates
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.scheduler import Scheduler
from tests.scheduler_proc.clients import Bench, user_msg
from tests.scheduler_proc.simulated_drafter import plan_all_drafts

PAGE_SIZE = 4
PROMPT = [11, 3, 17, 29, 5, 23, 2, 13, 37]
"""No two of its tokens are the same, so it repeats nothing."""


def ids(values) -> "array[int]":
    return array("i", values)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 1), max_size=9),
    st.sampled_from([b"", b"s" * 16]),
    st.integers(1, 12),
)
def test_the_tree_knows_what_came_behind(sequences, tail, salt, num_tokens):
    tree = RadixTree(2)
    for number, tokens in enumerate(sequences):
        key = ids(tokens[: len(tokens) // 2 * 2]).tobytes()
        tree.insert(tree.root, salt, key, list(range(100 * number, 100 * number + len(tokens) // 2)))
    found = ids([])
    found.frombytes(tree.find_continuation(tree.root, salt, ids(tail).tobytes(), 4 * num_tokens))
    whole = [tokens[: len(tokens) // 2 * 2] for tokens in sequences]
    behind = [tokens[len(tail) :] for tokens in whole if tokens[: len(tail)] == tail and len(tokens) > len(tail)]
    assert bool(found) == bool(behind)
    assert len(found) <= num_tokens
    assert not found or any(tokens[: len(found)] == list(found) for tokens in behind)
    assert len(found) == num_tokens or not found or list(found) in behind, "it ends though the tree goes on"
    other = tree.find_continuation(tree.root, b"t" * 16, ids(tail).tobytes(), 4 * num_tokens)
    assert not other, "another salt's tokens were found"


def test_a_guess_is_followed_as_long_as_it_is_right_and_then_looked_up_once_a_page():
    asked: list[int] = []

    def look_up(num_tokens: int) -> "array[int]":
        asked.append(num_tokens)
        return ids([7, 8, 9]) if len(asked) == 1 else ids([])

    rates = MatchRates()
    continuation, tokens = Continuation(PAGE_SIZE, rates), ids([1, 2])
    before = rates.chance(CONTINUATION)
    assert continuation.find(tokens, look_up) == ids([7, 8, 9])
    assert continuation.find(tokens + ids([7, 8]), look_up) == ids([9])
    assert (after_two := rates.chance(CONTINUATION)) > before
    assert not continuation.find(tokens + ids([7, 8, 1]), look_up)
    assert rates.chance(CONTINUATION) < after_two
    assert len(asked) == 1
    for end in range(1, 20):
        assert not continuation.find(tokens + ids([7, 8, 1]) + ids([0] * end), look_up)
    assert len(asked) == 1 + 5


def bench_with_lookup() -> Bench:
    bench = Bench(num_pages=60, page_size=PAGE_SIZE)
    planner = plan_all_drafts(bench.cache, NgramDrafter(8, bench.cache))
    bench.scheduler = Scheduler(bench.cache, bench.limits, bench.budget, planner, bench.grammars)
    return bench


def test_the_same_prompt_again_takes_few_steps_and_gets_the_same_tokens():
    bench = bench_with_lookup()
    for uid, salt in enumerate(("", "", "other"), 1):
        bench.send(user_msg(uid, PROMPT, 40, ignore_eos=True, temperature=1.0, seed=5, cache_salt=salt))
        before = bench.gauge("accepted_tokens")
        steps = bench.run()
        assert bench.output(uid) == bench.output(1)
        accepted = bench.gauge("accepted_tokens") - before
        if uid == 2:
            assert steps < 15
            assert accepted > 30
        else:
            assert accepted < 10, "it had what nobody may tell it"


def test_where_answers_part_the_text_is_still_its_own():
    plain, bench = Bench(num_pages=60, page_size=PAGE_SIZE), bench_with_lookup()
    for one in (plain, bench):
        for uid in range(1, 7):
            one.send(user_msg(uid, PROMPT, 30, ignore_eos=True, temperature=uid % 2, seed=uid))
            one.run()
    assert bench.inbox.tokens == plain.inbox.tokens
    assert bench.gauge("draft_tokens") > bench.gauge("accepted_tokens") > 0


def test_a_prompt_that_no_one_else_has_is_not_looked_up(monkeypatch):
    looked_up: list[object] = []
    monkeypatch.setattr(RadixTree, "find_continuation", lambda *arguments: looked_up.append(arguments) or b"")
    bench = bench_with_lookup()
    bench.send(user_msg(1, PROMPT, 40, ignore_eos=True), user_msg(2, [1, *PROMPT], 40, ignore_eos=True))
    bench.run()
    assert not looked_up


def test_without_sharing_there_is_nothing_to_find():
    cache = BlockAllocator(40, PAGE_SIZE, is_sharing=False)
    bench = Bench(num_pages=40, page_size=PAGE_SIZE, is_sharing=False)
    planner = plan_all_drafts(cache, NgramDrafter(8, cache))
    bench.scheduler = Scheduler(cache, bench.limits, bench.budget, planner, bench.grammars)
    for uid in (1, 2):
        bench.send(user_msg(uid, PROMPT, 20, ignore_eos=True, temperature=1.0, seed=5))
        bench.run()
    assert bench.output(1) == bench.output(2)
