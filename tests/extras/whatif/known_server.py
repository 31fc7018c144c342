"""A server whose steps take round numbers, for tests that say by hand what becomes of each request."""

from typing import Any

from extras.whatif.calibration import Calibration
from extras.whatif.cost_model import CostModel, MeasuredStep, StepSize
from extras.whatif.traces import Arrival

MODEL = CostModel(knots=(1, 2, 4), knot_seconds=(0.01, 0.012, 0.016), term_seconds=(0.02, 0.0, 0.0, 0.0, 0.001, 0.0))
"""A step of decode rows: 8 ms and 2 ms a row (but 10 ms for one); with chunks: 20 ms, and 1 ms a prompt token."""


def calibration(**fields: Any) -> Calibration:
    known: dict[str, Any] = {
        "model": "known",
        "can_overlap": False,
        "max_model_len": 64,
        "block_size": 4,
        "num_pages": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "steps": measured_steps(),
    }
    return Calibration(**known | fields)


def measured_steps() -> list[MeasuredStep]:
    """Returns steps that `MODEL` explains exactly."""
    sizes = [StepSize(rows, 10 * rows + index) for rows in range(1, 5) for index in range(8)]
    sizes += [StepSize(rows, 9 * rows, 1, tokens, 3 * tokens) for rows in range(3) for tokens in range(2, 13)]
    return [MeasuredStep(size, MODEL.predict(size)) for size in sizes]


def arrival(prompt: range, num_output: int, at_s: float = 0.0) -> Arrival:
    return Arrival(list(prompt), num_output, at_s)
