"""The rule by which engines are added and removed, on a simulated server whose engines take time to start."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from extras.remote.scaling_rule import Decision, Sample, ScalingLimits, decide

LIMITS = ScalingLimits(min_engines=1, max_engines=4, up_tokens=1000, up_s=5.0, down_s=60.0)
BOOT_S = 20
WAITS, BUSY, IDLE = (9000.0, 3.0), (0.0, 3.0), (0.0, 0.1)
"""(tokens that wait, load); `BUSY`: four engines have room for it, and three have none to spare."""

Load = Callable[[int], tuple[float, float]]


def simulate(load: Load, seconds: int, num_engines: int = 1) -> list[tuple[int, int, str]]:
    """Returns when the number of engines changed, to what, and why. No sample is taken while one starts or leaves."""
    history: list[Sample] = []
    changes: list[tuple[int, int, str]] = []
    away_until_s = 0
    for now_s in range(seconds):
        if now_s < away_until_s:
            continue
        history.append(Sample(now_s, num_engines, *load(now_s)))
        decision = decide(history, LIMITS)
        if decision is not None:
            history.clear()
            away_until_s = now_s + (BOOT_S if decision.num_engines > num_engines else 1)
            num_engines = decision.num_engines
            changes.append((now_s, num_engines, decision.cause))
    return changes


def test_a_burst_adds_one_engine_and_a_quiet_time_takes_it_away():
    def burst(now_s: int) -> tuple[float, float]:
        return (3000.0, 1.0) if 100 <= now_s < 110 else (0.0, 1.2) if now_s < 200 else IDLE

    assert simulate(burst, 400) == [(105, 2, "waiting"), (260, 1, "idle")]


def test_engines_are_added_while_prompts_wait_up_to_the_most():
    changes = simulate(lambda _: WAITS, 1000)
    assert [num for _, num, _ in changes] == [2, 3, 4]
    gaps = [later - earlier for (earlier, *_), (later, *_) in pairwise(changes)]
    assert all(gap >= BOOT_S + LIMITS.up_s for gap in gaps), "never while one starts, and then the time counts anew"


def test_they_leave_one_by_one_down_to_the_fewest():
    assert [num for _, num, _ in simulate(lambda _: IDLE, 1000, num_engines=4)] == [3, 2, 1]


@pytest.mark.parametrize(("period_s", "numbers"), [(2, []), (5, []), (9, [2, 3, 4]), (30, [2, 3, 4]), (59, [2, 3, 4])])
def test_a_load_that_comes_and_goes_changes_the_number_once(period_s: int, numbers: list[int]):
    """Waits shorter than `up_s` bring no engine, and quiet times shorter than `down_s` take none away."""
    changes = simulate(lambda now_s: WAITS if now_s // period_s % 2 else IDLE, 2000)
    assert [num for _, num, _ in changes] == numbers


def test_a_short_wait_brings_none_and_few_tokens_bring_none():
    assert not simulate(lambda now_s: WAITS if now_s % 20 < 5 else BUSY, 500)
    assert not simulate(lambda _: (1000.0, 1.0), 500)


def test_none_leaves_while_the_others_have_no_room():
    assert not simulate(lambda _: BUSY, 500, num_engines=4)


def test_what_an_operator_has_set_outside_of_the_range_is_brought_back():
    assert decide([Sample(0.0, 6, 0.0, 6.0)], LIMITS) == Decision(4, "range", "6 engines, 1 to 4 are wanted")
    assert decide([Sample(0.0, 1, 0.0, 0.0)], LIMITS._replace(min_engines=2)) == Decision(
        2, "range", "1 engines, 2 to 4 are wanted"
    )


def test_a_decision_reports_why_in_numbers():
    history = [Sample(float(at_s), 2, 9000.0, 1.5) for at_s in range(6)]
    decision = decide(history, LIMITS)
    assert decision is not None
    assert decision.text == "9000 prompt tokens wait, for 5 s more than 1000 for each of 2"
    history = [Sample(float(at_s), 3, 0.0, 0.4) for at_s in range(61)]
    decision = decide(history, LIMITS)
    assert decision is not None
    assert decision.text == "for 60 s nothing has waited, and 2 would be 20 % full".replace(" %", "%")
