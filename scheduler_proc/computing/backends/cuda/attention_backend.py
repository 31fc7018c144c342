"""What computes the attention of a GPU's steps, as the forward passes see it."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import Arrays, StepInputs, StepShape

Plan = Any
"""What a backend keeps of a step on the host until the step is launched; no other understands it."""


class AttentionBackend(Protocol):
    """Plans attention on the host with each step. Most of a plan is columns of the step; what is not is launched."""

    captures_prefills: bool
    """Whether steps with prefill rows can be captured too, and not decode rows alone."""

    def planned(self, shape: StepShape, max_rows: int) -> StepShape:
        """Returns the shape with room for the plan; that of decode serves up to `max_rows` rows, if it has any."""
        ...

    def pack(self, batch: Batch, shape: StepShape, arrays: Arrays) -> Plan:
        """Writes the columns of the plan for `batch`, whose other columns `arrays` holds already."""
        ...

    def add(self, inputs: StepInputs, shape: StepShape, tensors: Mapping[str, Tensor], plan: Plan) -> StepInputs:
        """Returns the inputs with the plan, of which `tensors` holds the columns; launches what is in none.

        Of a shape that is captured, they are those of all its later steps.
        """
        ...

    def launch(self, shape: StepShape, plan: Plan) -> None:
        """Launches what is in no column, before a captured step is replayed."""
        ...
