"""What n-gram lookup finds and proposes; a slow search over all places says what is right."""

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.deciding.draft_lengths import NO_LIMIT
from scheduler_proc.deciding.drafts import NgramDrafter
from scheduler_proc.deciding.ngrams import MAX_ADDED, MAX_CANDIDATES, MAX_MATCH, NgramIndex
from scheduler_proc.deciding.radix import RadixTree
from scheduler_proc.deciding.requests import Limits, PendingReq, Req
from tests.scheduler_proc.clients import user_msg


def ids(values) -> "array[int]":
    return array("i", values)


def matches(token_ids: "array[int]", start: int) -> int:
    """Returns how many tokens before `start` are the last ones, at most MAX_MATCH."""
    length = 0
    while length < min(MAX_MATCH, start) and token_ids[start - 1 - length] == token_ids[-1 - length]:
        length += 1
    return length


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_it_finds_the_longest_match_among_the_latest_places(values, step):
    index = NgramIndex()
    for end in range(1, len(values) + 1, step):
        index.find(ids(values[:end]))
    token_ids = ids(values)
    start, length = index.find(token_ids)
    places = [place for place in range(len(values) - 1, 1, -1) if matches(token_ids, place) >= 2][:MAX_CANDIDATES]
    longest = max((matches(token_ids, place) for place in places), default=0)
    assert length == longest
    assert start == next((place for place in places if matches(token_ids, place) == longest), 0)


def test_a_long_prompt_is_indexed_bit_by_bit():
    chance = random.Random(1)
    token_ids = ids(chance.randrange(1 << 30) for _ in range(3 * MAX_ADDED))
    token_ids += token_ids[2 * MAX_ADDED : 2 * MAX_ADDED + 5]
    index = NgramIndex()
    assert [index.find(token_ids)[0] for _ in range(4)] == [0, 0, 2 * MAX_ADDED + 5, 2 * MAX_ADDED + 5]


def proposed(prompt: list[int], max_tokens: int = NO_LIMIT, num_speculative_tokens: int = 8) -> list[int]:
    pending = PendingReq(user_msg(1, prompt, 100), Limits(4096, 1 << 30), 0)
    return list(NgramDrafter(num_speculative_tokens).propose(Req(pending, RadixTree(4).root), max_tokens))


def test_a_longer_match_is_trusted_with_more_tokens():
    tail = list(range(20, 40))
    assert proposed([1, 2, *tail, 9, 1, 2]) == tail[:2]
    assert proposed([1, 2, 3, *tail, 9, 1, 2, 3]) == tail[:4]
    assert proposed([1, 2, 3, 4, *tail, 9, 1, 2, 3, 4]) == tail[:8]
    assert proposed([1, 2, 3, 4, *tail, 9, 1, 2, 3, 4], max_tokens=3) == tail[:3]
    assert proposed([1, *tail, 9, 1]) == proposed([]) == proposed([1]) == proposed(tail) == []


def test_what_repeats_goes_on_repeating():
    assert proposed([5, 6, 7] * 3) == [5, 6, 7, 5, 6, 7, 5, 6]
    assert proposed([4] * 5) == [4] * 8
