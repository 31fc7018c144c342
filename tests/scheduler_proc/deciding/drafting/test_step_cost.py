"""The predicted time of a step: a line near the fastest of the latest steps, and the jumps of small ones."""

import random

import pytest

from scheduler_proc.deciding.drafting.step_cost import NUM_SIZES, StepCost


def cost_where(seconds_of, sizes, rounds: int = 60) -> StepCost:
    """Returns what is known after steps of these sizes that took so long."""
    cost = StepCost()
    for _ in range(rounds):
        for size in sizes:
            cost.add(size, seconds_of(size))
    return cost


def noisy(seconds_of, chance: random.Random):
    return lambda size: seconds_of(size) * (1 + (chance.expovariate(1.0) if chance.random() < 0.5 else 0.0))


@pytest.mark.parametrize("per_token", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("is_noisy", [False, True])
def test_the_line_is_that_of_the_quickest_steps(per_token: float, is_noisy: bool):
    def exact(size: int) -> float:
        return 1 + per_token * (size - 1)

    cost = cost_where(noisy(exact, random.Random(3)) if is_noisy else exact, (1, 2, 4, 9))
    assert cost.seconds_per_token == pytest.approx(per_token, rel=0.15, abs=0.03)
    assert cost.predict(1) == pytest.approx(1, rel=0.2)


def test_what_is_not_known_is_tried_and_forgotten_costs_are_tried_again():
    cost = StepCost()
    assert cost.seconds_per_token == cost.predict(3) == 0
    for size in (1, 5) * 20:
        cost.add(size, float(size))
    dear = cost.seconds_per_token
    assert dear > 0.8
    assert cost.predict(5) > 4
    for _ in range(3_000):
        cost.add(1, 1.0)
    assert cost.seconds_per_token < 0.1
    assert cost.predict(5) < 2


@pytest.mark.parametrize("is_noisy", [False, True])
def test_a_kernel_that_takes_tokens_in_sixes_is_seen(is_noisy: bool):
    def in_sixes(size: int) -> float:
        return 3.0 + 1.5 * ((size - 1) // 6)

    cost = cost_where(noisy(in_sixes, random.Random(5)) if is_noisy else in_sixes, (1, 4, 6, 7, 12, 13))
    assert cost.predict(6) - cost.predict(1) < 0.35
    assert cost.predict(7) - cost.predict(6) > 1.0
    assert cost.predict(13) - cost.predict(12) > 1.0


def test_large_steps_go_by_the_line_and_slow_ones_count_little():
    cost = cost_where(lambda size: 10.0 + size, (1, NUM_SIZES - 1, NUM_SIZES, 200))
    assert cost.predict(400) == pytest.approx(410, rel=0.1)
    before = cost.predict(1)
    cost.add(1, 1000.0)
    assert cost.predict(1) < 1.1 * before


def test_when_costs_are_requested_changes_none():
    chance, seldom, often = random.Random(7), StepCost(), StepCost()
    for _ in range(200):
        size, seconds = chance.choice((1, 2, 5, 40)), chance.uniform(1, 2)
        seldom.add(size, seconds)
        often.add(size, seconds)
        assert often.predict(size) > 0
    assert [seldom.predict(size) for size in range(50)] == [often.predict(size) for size in range(50)]
    assert seldom.seconds_per_token == often.seconds_per_token
