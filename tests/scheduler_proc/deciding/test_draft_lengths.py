"""Draft tokens are used where they are worth their time: by what was accepted and by what steps took."""

import random

import pytest

from scheduler_proc.deciding.draft_lengths import NO_LIMIT, AcceptanceRate, DraftLengths
from scheduler_proc.deciding.step_cost import StepCost


def lengths_where(seconds_of, sizes=(1, 2, 4, 9), rounds: int = 60) -> DraftLengths:
    """Returns what is known after steps of these sizes that took so long."""
    lengths = DraftLengths()
    for _ in range(rounds):
        for size in sizes:
            lengths.cost.add(size, seconds_of(size))
    return lengths


def rate_after(*runs: tuple[int, int]) -> AcceptanceRate:
    rate = AcceptanceRate()
    for run in runs:
        rate.add(*run)
    return rate


@pytest.mark.parametrize("per_token", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("is_noisy", [False, True])
def test_the_line_is_that_of_the_quickest_steps(per_token: float, is_noisy: bool):
    chance = random.Random(3)

    def seconds(size: int) -> float:
        slowed = chance.expovariate(1.0) if is_noisy and chance.random() < 0.5 else 0.0
        return (1 + per_token * (size - 1)) * (1 + slowed)

    cost = lengths_where(seconds).cost
    assert cost.seconds_per_token == pytest.approx(per_token, rel=0.15, abs=0.03)
    assert cost.predict(1) == pytest.approx(1, rel=0.2)


def test_what_is_not_known_is_tried_and_forgotten_costs_are_tried_again():
    cost = StepCost()
    assert cost.seconds_per_token == cost.predict(3) == 0
    for size in (1, 5) * 20:
        cost.add(size, float(size))
    dear = cost.seconds_per_token
    assert dear > 0.8
    for _ in range(300):
        cost.add(1, 1.0)
    assert cost.seconds_per_token < 0.1


def test_before_the_first_step_is_measured_there_is_no_limit():
    lengths = DraftLengths()
    lengths.begin_step(1, 1)
    assert lengths.choose(AcceptanceRate()) == NO_LIMIT


def test_a_row_whose_draft_tokens_are_right_gets_more():
    lengths = lengths_where(lambda size: 1 + 0.1 * size)
    chosen = []
    for rate in (rate_after((4, 0), (4, 0), (4, 0), (4, 0), (4, 0), (4, 0)), rate_after(), rate_after((4, 4), (8, 8))):
        lengths.begin_step(1, 1)
        chosen.append(lengths.choose(rate))
    assert chosen[0] <= 1 < chosen[1] < 6 < chosen[2]


def test_steps_that_take_as_long_as_they_have_tokens_have_no_draft_tokens():
    lengths = lengths_where(float, sizes=(30, 32, 34, 40))
    lengths.begin_step(32, 32)
    assert lengths.choose(rate_after((4, 4), (8, 8))) == 0
    flat = lengths_where(lambda size: 1 + 0.001 * size, sizes=(30, 32, 34, 40))
    flat.begin_step(32, 32)
    assert flat.choose(rate_after()) >= 1


def test_one_token_more_is_worth_less_once_others_have_some():
    lengths = lengths_where(lambda size: 1 + 0.05 * size)
    rate = rate_after((4, 3))
    lengths.begin_step(4, 4)
    first = lengths.choose(rate)
    for _ in range(3):
        lengths.add(rate, first)
    assert 0 < lengths.choose(rate) < first


@pytest.mark.parametrize("per_token", [0.1, 0.3])
def test_a_row_alone_gets_as_many_as_make_the_step_yield_most(per_token: float):
    lengths, rate = lengths_where(lambda size: 1 + per_token * (size - 1)), rate_after((8, 8), (8, 8))
    lengths.begin_step(1, 1)

    def tokens_a_second(num_drafts: int) -> float:
        return sum(rate.value**j for j in range(num_drafts + 1)) / (1 + per_token * num_drafts)

    assert abs(lengths.choose(rate) - max(range(30), key=tokens_a_second)) <= 1


def test_a_new_row_is_tried_at_once_where_a_token_costs_half_a_step():
    lengths = lengths_where(lambda size: 1 + 0.5 * (size - 1))
    lengths.begin_step(1, 1)
    assert lengths.choose(AcceptanceRate()) >= 1


def test_a_row_without_luck_is_tried_again_in_time():
    lengths = lengths_where(lambda size: 1 + 0.3 * size)
    rate = rate_after(*[(4, 0)] * 10)
    lengths.begin_step(1, 1)
    num_steps = 0
    while num_steps < 2_000 and not lengths.choose(rate):
        lengths.begin_step(1, 1)
        num_steps += 1
    assert 10 < num_steps < 1_000


@pytest.mark.parametrize("per_token", [0.02, 0.05, 0.1, 0.3])
def test_a_row_whose_draft_tokens_are_always_wrong_loses_little(per_token: float):
    """Even where the lookup proposes eight tokens for each step, and the sizes of steps make a token look cheap."""
    lengths, rate, num_steps, seconds = DraftLengths(), AcceptanceRate(), 2_000, 0.0
    for _ in range(num_steps):
        lengths.begin_step(1, 1)
        num_drafts = min(8, lengths.choose(rate))
        if num_drafts:
            lengths.add(rate, num_drafts)
            rate.add(num_drafts, 0)
        took = 1 + per_token * num_drafts
        lengths.cost.add(1 + num_drafts, took)
        seconds += took
    assert 0 < seconds / num_steps - 1 < 0.03


def test_a_row_without_credit_gets_it_back_with_the_first_right_draft_token():
    lengths, rate = lengths_where(lambda size: 1 + 0.05 * size), AcceptanceRate()
    lengths.begin_step(1, 1)
    while lengths.choose(rate):
        lengths.add(rate, 8)
        rate.add(8, 0)
        lengths.begin_step(1, 1)
    num_steps = 0
    while not lengths.choose(rate):
        lengths.begin_step(1, 1)
        num_steps += 1
    assert num_steps < 100
    for _ in range(4):
        lengths.add(rate, 4)
        rate.add(4, 4)
        lengths.begin_step(1, 1)
        assert lengths.choose(rate) >= 3
