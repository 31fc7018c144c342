"""End times of steps: few points for many steps, and a bounded log."""

import pytest

from frontend.requests.step_log import MAX_POINTS, NUM_STEPS, StepLog


@pytest.fixture(scope="module")
def log() -> StepLog:
    log = StepLog()
    for number in range(3 * NUM_STEPS):
        log.add(10 * number)
    return log


def test_it_is_bounded_and_keeps_the_latest(log: StepLog):
    assert NUM_STEPS <= len(log) <= 2 * NUM_STEPS
    latest_ns = 10 * (3 * NUM_STEPS - 1)
    assert log.between(latest_ns - 25, latest_ns) == (latest_ns - 20, latest_ns - 10, latest_ns)


@pytest.mark.parametrize("num_steps", [1, 2, MAX_POINTS, MAX_POINTS + 1, 1000, 10_000])
def test_a_part_has_few_points_with_both_ends(log: StepLog, num_steps: int):
    end_ns = 10 * (3 * NUM_STEPS - 1)
    begin_ns = end_ns - 10 * (num_steps - 1)
    points = log.between(begin_ns, end_ns)
    assert len(points) <= min(num_steps, MAX_POINTS + 1)
    assert (points[0], points[-1]) == (begin_ns, end_ns)
    assert sorted(set(points)) == list(points)


def test_between_steps_there_is_none(log: StepLog):
    end_ns = 10 * (3 * NUM_STEPS - 1)
    assert log.between(end_ns - 9, end_ns - 1) == ()
    assert log.between(end_ns + 1, end_ns + 100) == ()
