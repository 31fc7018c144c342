"""Calibration finds the cost of steps on a device whose steps take known times."""

import itertools
from pathlib import Path

import msgspec
import pytest

from extras.whatif.calibrate import calibrate
from extras.whatif.calibration import read_calibration
from extras.whatif.cost_model import StepSize, fit
from extras.whatif.settings import Setting, make_config
from extras.whatif.simulation import SimulatedRunner
from tests.extras.whatif.known_server import MODEL, calibration

SETTING = Setting(max_num_seqs=4, num_pages=64, max_num_batched_tokens=16)


@pytest.mark.parametrize("can_overlap", [False, True])
def test_the_cost_of_steps_is_found_from_their_times_alone(can_overlap: bool):
    runner = SimulatedRunner(MODEL.predict, SETTING, can_overlap)
    found = calibrate(make_config(SETTING, calibration()), runner, 60.0, runner.clock)
    assert runner.clock() == pytest.approx(60.0, abs=2.0)
    assert {step.size.decode_rows for step in found.steps} == {0, 1, 2, 3, 4}
    assert max(step.size.prefill_tokens for step in found.steps) == 16
    ends_s = itertools.accumulate(step.seconds for step in found.steps)
    first = [step.size for step, end_s in zip(found.steps, ends_s, strict=True) if end_s < 18.0]
    assert {size.decode_rows + size.prefill_chunks for size in first} == {1}  # a third of the time one at a time
    model = fit(found.steps)
    for size in (StepSize(1, 20), StepSize(4, 90), StepSize(0, 0, 1, 16, 200), StepSize(3, 50, 1, 8, 90)):
        assert model.predict(size) == pytest.approx(MODEL.predict(size), rel=0.02)


def test_what_is_measured_is_kept_with_the_settings(tmp_path: Path):
    runner = SimulatedRunner(MODEL.predict, SETTING, can_overlap=False)
    found = calibrate(make_config(SETTING, calibration()), runner, 1.0, runner.clock)
    expected = calibration(steps=found.steps)
    (tmp_path / "steps.json").write_bytes(msgspec.json.encode(found))
    assert read_calibration(tmp_path / "steps.json") == found == expected
