"""What the blocks of all layers are made with, in addition to their weights."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.model.description import RopeDescription
from scheduler_proc.computing.parallel import ParallelGroup


class BlockContext(NamedTuple):
    parallel: ParallelGroup
    rope_tables: Callable[[RopeDescription, int], RopeTables]
    """Returns the tables for heads of this size; blocks share them."""
    biases: Tensor | None = None
    """[H, X]: the biases of scores by distance, as `AttentionOptions` has them."""
