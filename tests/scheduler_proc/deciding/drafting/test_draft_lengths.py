"""Draft tokens are used if they are worth their time, by their probabilities and the time of steps."""

import random
from itertools import accumulate
from operator import mul

import pytest

from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_state import FORCED, AcceptanceRate
from scheduler_proc.deciding.drafting.match_rates import KINDS, MatchRates

PLENTY = 1000


def lengths_where(seconds_of, sizes=(1, 2, 4, 9), rounds: int = 60) -> DraftLengths:
    """Returns what is known after steps of these sizes that took so long."""
    lengths = DraftLengths()
    for _ in range(rounds):
        for size in sizes:
            lengths.cost.add(size, seconds_of(size))
    return lengths


def choose(lengths: DraftLengths, num_rows: int, *chances: list[float], max_tokens: int = PLENTY) -> list[int]:
    lengths.begin_step(num_rows)
    return lengths.choose(chances, max_tokens)


def test_before_the_first_step_is_measured_there_is_no_limit():
    assert choose(DraftLengths(), 2, [0.1] * 9, [0.9] * 3) == [9, 3]
    assert sum(choose(DraftLengths(), 2, [0.1] * 9, [0.9] * 3, max_tokens=5)) == 5


def test_likelier_tokens_make_a_longer_draft():
    lengths = lengths_where(lambda size: 1 + 0.1 * size)
    counts = [choose(lengths, 1, [chance] * 20)[0] for chance in (0.05, 0.5, 0.9, 0.99)]
    assert counts[0] == 0 < counts[1] < counts[2] < counts[3]


def test_steps_that_take_as_long_as_they_have_tokens_have_no_draft_tokens():
    dear = lengths_where(float, sizes=(30, 32, 34, 40))
    assert choose(dear, 32, [0.9] * 8, [0.9] * 8) == [0, 0]
    flat = lengths_where(lambda size: 1 + 0.001 * size, sizes=(30, 32, 34, 40))
    assert min(choose(flat, 32, [0.9] * 8, [0.9] * 8)) >= 1


@pytest.mark.parametrize("seed", range(20))
def test_of_all_rows_the_tokens_that_make_the_step_yield_most_are_chosen(seed: int):
    """A search over all numbers of tokens of three rows finds the best."""
    chance = random.Random(seed)

    def seconds(size: int) -> float:
        return 3 + 1.2 * ((size - 1) // 6) + 0.1 * size

    lengths = lengths_where(seconds, sizes=range(1, 33), rounds=20)
    rows = [[chance.uniform(0.2, 0.98) for _ in range(5)] for _ in range(3)]

    def rate(*counts: int) -> float:
        expected = 3 + sum(sum(accumulate(row[:count], mul)) for row, count in zip(rows, counts, strict=True))
        return expected / lengths.cost.predict(3 + sum(counts))

    best = max(rate(a, b, c) for a in range(6) for b in range(6) for c in range(6))
    assert rate(*choose(lengths, 3, *rows)) == pytest.approx(best)


def test_the_likelier_row_comes_first_where_few_tokens_are_left():
    lengths = lengths_where(lambda size: 1 + 0.01 * size)
    assert choose(lengths, 2, [0.6] * 8, [0.95] * 8, max_tokens=4) == [0, 4]


def test_what_a_grammar_forces_is_tried_at_once_where_a_token_costs_most_of_its_share():
    lengths = lengths_where(lambda size: 2 + 0.9 * (size - 1), sizes=(14, 16, 18, 20))
    rate = AcceptanceRate(FORCED)
    rate.follow(lengths.forced)
    assert choose(lengths, 16, [rate.value] * 6)[0] >= 1
    for _ in range(4):
        rate.add(6, 0)
    assert choose(lengths, 16, [rate.value] * 6) == [0]
    for _ in range(800):
        rate.fade()
    assert choose(lengths, 16, [rate.value] * 6)[0] >= 1, "in time it is tried again, also by other rows"


@pytest.mark.parametrize("per_token", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("length", [2, 4, 20])
def test_a_row_whose_matches_are_always_wrong_loses_little(per_token: float, length: int):
    """Even where each step begins with a match of this length, and the sizes of steps make a token look cheap."""
    lengths, rates, num_steps, seconds = DraftLengths(), MatchRates(MatchRates()), 2_000, 0.0
    for _ in range(num_steps):
        chances = [rates.chance(KINDS[min(length + index, 20)]) for index in range(16)]
        (num_drafts,) = choose(lengths, 1, chances)
        rates.count(KINDS[length], False)
        took = 1 + per_token * num_drafts
        lengths.cost.add(1 + num_drafts, took)
        seconds += took
    assert 0 < seconds / num_steps - 1 < 0.03


def test_a_row_that_begins_to_repeat_gets_long_drafts_soon():
    """Its short matches were wrong for long, and longer ones are told apart from them."""
    lengths, rates = lengths_where(lambda size: 1 + 0.1 * (size - 1)), MatchRates(MatchRates())
    for _ in range(40):
        rates.count(KINDS[2], False)
    assert choose(lengths, 1, [rates.chance(KINDS[2])]) == [0]
    assert choose(lengths, 1, [rates.chance(KINDS[min(length, 20)]) for length in range(6, 22)])[0] >= 6
