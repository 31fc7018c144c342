"""N-gram lookup, compared with a slow search over all places."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.deciding.drafting import ngrams
from scheduler_proc.deciding.drafting.drafts import MAX_SPARSE, MIN_SPARSE, Draft, NgramDrafter
from scheduler_proc.deciding.drafting.match_rates import KINDS, MAX_LENGTH, MatchRates
from scheduler_proc.deciding.drafting.ngrams import NgramMatch
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Limits, PendingReq
from tests.scheduler_proc.clients import user_msg


def ids(values) -> "array[int]":
    return array("i", values)


def latest(values: list[int]) -> int:
    """Returns the latest place after an earlier occurrence of the last two tokens, 0 if there is none."""
    return next((place for place in range(len(values) - 1, 1, -1) if values[place - 2 : place] == values[-2:]), 0)


def num_matching(values: list[int], place: int) -> int:
    length = 0
    while length < min(MAX_LENGTH, place) and values[place - 1 - length] == values[-1 - length]:
        length += 1
    return length


# Ids whose bytes also make up other ids, where four bytes begin within one.
TOKENS = st.sampled_from([0, 1, 256, 1 << 16, (1 << 16) + 256, 1 << 24])


@given(st.lists(TOKENS, max_size=60), st.integers(1, 60))
def test_a_match_lasts_as_long_as_it_is_right_and_then_the_latest_place_counts(values, step):
    match, place = NgramMatch(MatchRates()), 0
    known: list[int] = []
    for end in range(1, len(values) + 1, step):
        new = values[len(known) : end]
        known = values[:end]
        followed = bool(place) and all(known[place + index] == token_id for index, token_id in enumerate(new))
        place = place + len(new) if followed else latest(known)
        match.follow(ids(known))
        assert match.place == place
        assert not place or match.length == num_matching(known, place)


def test_each_token_of_the_output_reports_how_good_a_match_was_with_or_without_a_draft():
    rates = MatchRates()
    match, before = NgramMatch(rates), [rates.chance(KINDS[length]) for length in (2, 3)]
    match.follow(ids([1, 2, 3, 4, 9, 1, 2]))
    match.follow(ids([1, 2, 3, 4, 9, 1, 2, 3, 7]))
    assert rates.chance(KINDS[2]) > before[0]
    assert rates.chance(KINDS[3]) < before[1]
    assert not match.place


def test_only_the_latest_tokens_of_a_long_prompt_are_searched(monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(1)
    token_ids = ids(chance.randrange(1 << 30) for _ in range(3_000))
    token_ids += token_ids[1_500:1_505]
    monkeypatch.setattr(ngrams, "MAX_SEARCHED", 2_000)
    match = NgramMatch(MatchRates())
    match.follow(token_ids)
    assert (match.place, match.length) == (1_505, 5)
    monkeypatch.setattr(ngrams, "MAX_SEARCHED", 1_500)
    match = NgramMatch(MatchRates())
    match.follow(token_ids)
    assert match.place == 0


def proposed(prompt: list[int], max_tokens: int = 1000, num_speculative_tokens: int = 8) -> Draft:
    pending = PendingReq(user_msg(1, prompt, 100), Limits(4096, 1 << 30), 0)
    return NgramDrafter(num_speculative_tokens).propose(Req(pending, RadixTree(4).root), max_tokens)


def test_it_proposes_what_followed_and_trusts_a_longer_match_more():
    tail = list(range(20, 40))
    short, long = proposed([1, 2, *tail, 9, 1, 2]), proposed([1, 2, 3, 4, 5, 6, *tail, 9, 1, 2, 3, 4, 5, 6])
    assert list(short.token_ids) == list(long.token_ids) == tail[:8]
    assert len(short.chances) == len(long.chances) == 8
    assert short.chances[0] < 0.5 < long.chances[0] <= long.chances[7]
    assert list(proposed([1, 2, 3, 4, *tail, 9, 1, 2, 3, 4], max_tokens=3).token_ids) == tail[:3]
    for prompt in ([1, *tail, 9, 1], [], [1], tail):
        assert not proposed(prompt).token_ids


def test_where_short_matches_are_mostly_wrong_they_are_looked_for_in_some_steps_alone():
    drafter, chance, num_asked = NgramDrafter(8), random.Random(2), 0
    pending = PendingReq(user_msg(1, [1, 2, 3], 10_000), Limits(20_000, 1 << 30), 0)
    req, idle_until = Req(pending, RadixTree(4).root), 0
    for _ in range(1_000):
        req.token_ids.append(chance.randrange(60))
        if len(req.token_ids) >= idle_until:
            num_asked += 1
            idle_until = drafter.propose(req, 8).idle_until
    assert 1_000 / MAX_SPARSE < num_asked < 400
    passage, num_steps = ids(range(100, 140)), 0
    req.token_ids.extend(passage)
    while True:
        if len(req.token_ids) >= idle_until:
            draft = drafter.propose(req, 8)
            if draft.token_ids:
                break
            idle_until = draft.idle_until
        req.token_ids.append(passage[num_steps])
        num_steps += 1
    assert num_steps <= 2 + MAX_SPARSE + MIN_SPARSE, "it finds a text that begins to repeat"


def test_where_nothing_is_known_of_short_matches_each_step_looks_for_them_at_first():
    drafter, pending = NgramDrafter(8), PendingReq(user_msg(1, [1, 2, 3], 100), Limits(4096, 1 << 30), 0)
    req = Req(pending, RadixTree(4).root)
    for token_id in range(4, 4 + MAX_SPARSE):
        draft = drafter.propose(req, 8)
        assert not draft.token_ids
        assert draft.idle_until <= len(req.token_ids)
        req.token_ids.append(token_id)
    assert drafter.propose(req, 8).idle_until > len(req.token_ids)


def test_what_repeats_continues_repeating():
    assert list(proposed([5, 6, 7] * 3).token_ids) == [5, 6, 7, 5, 6, 7, 5, 6]
    assert list(proposed([4] * 5).token_ids) == [4] * 8
