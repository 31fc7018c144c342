"""The rows of a step as attention and recurrent blocks get them, with memory for their results."""

from typing import NamedTuple

from torch import Tensor

from scheduler_proc.computing.model.workspace import Activations
from scheduler_proc.computing.step.inputs import StepRows


class BlockRows(NamedTuple):
    """With `narrow`, the update of the residual stream covers only those rows, and is in that room."""

    rows: StepRows
    room: Activations
    attended: Tensor
    """[T, A]: buffer for what the block's output linear reads; the block overwrites it."""
    narrow: tuple[StepRows, Activations] | None
