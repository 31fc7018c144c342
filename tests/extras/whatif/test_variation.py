"""Simulated steps vary as the measured ones did: in their order, each kind for itself."""

from random import Random

import pytest

from extras.whatif.cost_model import MeasuredStep, StepSize
from extras.whatif.outcome import simulate
from extras.whatif.settings import Setting
from extras.whatif.variation import VaryingSteps
from tests.extras.whatif.known_server import MODEL, arrival, calibration, measured_steps

ONE, THREE, CHUNK = StepSize(1, 10), StepSize(3, 50), StepSize(1, 5, 1, 7, 20)


def vary(*measured: tuple[StepSize, float]) -> VaryingSteps:
    """Returns steps that vary like measured ones of these sizes, whose times are these multiples of the predictions."""
    return VaryingSteps(MODEL, [MeasuredStep(size, ratio * MODEL.predict(size)) for size, ratio in measured], Random(3))


def test_slow_steps_stay_together():
    ratios = [1.0] * 30 + [2.0] * 10 + [9.0]
    steps = vary(*((ONE, ratio) for ratio in ratios))
    taken = [round(steps.next_seconds(StepSize(1, 99)) / MODEL.predict(StepSize(1, 99)), 6) for _ in range(82)]
    assert taken[:41] == taken[41:]  # again from the first
    begin = taken.index(9.0) + 1
    assert taken[begin : begin + 41] == ratios


def test_each_kind_of_step_varies_for_itself():
    steps = vary((ONE, 3.0), (CHUNK, 0.5), (THREE, 1.5), (ONE, 3.0))
    for _ in range(2):
        assert steps.next_seconds(CHUNK) == pytest.approx(0.5 * MODEL.predict(CHUNK))
        assert steps.next_seconds(ONE) == pytest.approx(3.0 * MODEL.predict(ONE))
        assert steps.next_seconds(THREE) == pytest.approx(1.5 * MODEL.predict(THREE))
    assert steps.next_seconds(StepSize(9, 9)) == MODEL.predict(StepSize(9, 9))  # none was measured


def test_a_step_behind_one_with_chunks_varies_as_such_steps_did():
    steps = vary(*[(CHUNK, 1.0), (ONE, 1.4), (ONE, 1.0), (ONE, 1.0)] * 10, (CHUNK, 1.0), (THREE, 5.0), (THREE, 1.0))
    taken = [steps.next_seconds(size) / MODEL.predict(size) for size in (ONE, CHUNK, ONE, ONE, CHUNK, CHUNK, ONE)]
    assert taken == pytest.approx([1.0, 1.0, 1.4, 1.0, 1.0, 1.0, 1.4])
    steps.next_seconds(CHUNK)
    few = {round(steps.next_seconds(THREE) / MODEL.predict(THREE), 3) for _ in range(4)}
    assert few == {5.0, 1.0}  # a single step after a chunk has no variation of its own


def test_a_slow_fifth_of_the_time_is_seen_in_p90_and_not_in_p50():
    known = [step for step in measured_steps() if step.size.decode_rows == 1 and not step.size.prefill_chunks]
    steps = [MeasuredStep(step.size, (1 + index // 40) * step.seconds) for index, step in enumerate(known * 7)][:50]
    setting, alone = Setting(4, 64, 16), [arrival(range(10), 51)]
    steady, varied = (simulate(alone, calibration(steps=one), MODEL, setting).inter_token for one in (known, steps))
    assert (steady.p50_ms, varied.p50_ms) == pytest.approx((10.0, 10.0))
    assert (steady.p90_ms, varied.p90_ms) == pytest.approx((10.0, 20.0))
