"""The cost model finds the parameters of simulated steps, also among outliers, and reports if it cannot."""

import random

import numpy as np
import pytest

from extras.whatif.cost_model import CostModel, MeasuredStep, StepSize, fit, size_of_step, with_chunks
from messages.errors import UsageError
from messages.ring.steps import Batch
from tests.extras.whatif.known_server import MODEL, measured_steps
from tests.scheduler_proc.clients import Bench, user_msg


def sizes_of(bench: Bench) -> list[StepSize]:
    batches: list[Batch] = bench.runner.batches
    return [size_of_step(batch) for batch in batches]


def test_the_size_of_steps_as_they_are_planned():
    bench = Bench(num_pages=64, max_num_batched_tokens=8)
    bench.send(user_msg(1, [1] * 6, 3, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, [2] * 9, 2, ignore_eos=True))
    for _ in range(3):
        bench.step()
    assert sizes_of(bench) == [
        StepSize(0, 0, 1, 6, 21),  # 1 + 2 + … + 6 keys
        StepSize(1, 7, 1, 7, 28),
        StepSize(1, 8, 1, 2, 8 + 9),
        StepSize(1, 10),
    ]


def test_chunks_behind_a_context():
    assert with_chunks(2, 30, [(4, 2), (0, 3)]) == StepSize(2, 30, 2, 5, (5 + 6) + (1 + 2 + 3))


def test_steps_of_a_known_model_are_explained_exactly():
    steps = measured_steps()
    model = fit(steps)
    for step in steps:
        assert model.predict(step.size) == pytest.approx(step.seconds, rel=0.01)
    assert model.p90_error < 0.01


def test_outliers_and_noise_do_not_move_the_model():
    chance = random.Random(0)
    steps = [
        MeasuredStep(step.size, step.seconds * chance.uniform(0.9, 1.1) * (20 if index % 12 == 0 else 1))
        for index, step in enumerate(measured_steps() * 5)
    ]
    model = fit(steps)
    ratios = [model.predict(step.size) / step.seconds for step in measured_steps()]
    assert np.abs(np.array(ratios) - 1).max() < 0.1
    assert model.median_error < 0.1


def test_no_part_of_a_step_takes_less_than_nothing():
    # Longer prompts that take less time: only a term below 0 would explain them.
    steps = [MeasuredStep(StepSize(0, 0, 1, tokens, tokens), 1.0 / tokens) for tokens in range(1, 40)]
    steps += [MeasuredStep(StepSize(rows, rows), 0.01) for rows in (1, 2, 3)]
    model = fit(steps)
    assert min(*model.knot_seconds, *model.term_seconds) >= 0


@pytest.mark.parametrize(("rows", "seconds"), [(1, 0.010), (2, 0.012), (3, 0.014), (4, 0.016), (8, 0.024)])
def test_between_and_beyond_the_measured_numbers_of_rows_steps_continue_in_a_line(rows: int, seconds: float):
    assert MODEL.predict(StepSize(rows, 0)) == pytest.approx(seconds)


def test_a_step_between_small_numbers_of_rows_is_found():
    """A kernel with tiles of 4 rows: the fifth costs as much as four more."""
    tiled = {rows: 0.01 * -(-rows // 4) for rows in range(1, 9)}
    model = fit([MeasuredStep(StepSize(rows, keys), tiled[rows]) for rows in tiled for keys in range(8)])
    for rows in range(1, 9):
        assert model.predict(StepSize(rows, 4)) == pytest.approx(tiled[rows], rel=0.01)


def test_one_measured_number_of_rows_stands_for_all():
    assert CostModel((3,), (0.01,), (0.0,) * 6).predict(StepSize(9, 0)) == 0.01


@pytest.mark.parametrize(
    "steps", [[], measured_steps()[:5], [MeasuredStep(StepSize(0, 0, 1, 5, 15), 0.02)] * 50], ids=len
)
def test_too_few_steps_are_refused(steps: list[MeasuredStep]):
    with pytest.raises(UsageError, match="too few for a cost model"):
        fit(steps)
