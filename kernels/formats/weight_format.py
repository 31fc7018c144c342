"""What every format of a weight provides. Nothing else asks what a weight is.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from kernels.gelu import GeluKind

AllReduce = Callable[[Tensor], Tensor]
"""Returns the sum of all ranks' tensors, in the memory of this one's."""


class Linear(Protocol):
    """A linear layer, ready to be applied."""

    def __call__(self, x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
        """Returns [T, O], in `out_TO` if the kernel can put it there."""
        ...


class Weight(Protocol):
    """A parameter in its format. All formats hold matrices [O, I]; a plain one may have any shape."""

    @property
    def format(self) -> "WeightFormat": ...

    @property
    def stored(self) -> Tensor:
        """The one tensor that it consists of: what is kept in shared memory or on disk."""
        ...

    @property
    def numbers(self) -> tuple[int, ...]:
        """What `WeightFormat.restore` needs besides the stored tensor."""
        ...

    def set_rows(self, first_row: int, rows: Tensor) -> None:
        """Sets the rows from `first_row` on; `rows` may have another dtype, and may be a transposed tensor."""
        ...

    def finish(self, largest_O: Tensor | None = None) -> "Weight":
        """Returns the weight that computes, once all rows are set. The others' `set_rows` must not be called again.

        `largest_O`: the largest magnitude of each output over the inputs of all ranks, if this is a part of them.
        """
        ...

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """Returns x W^T + b, followed by the GELU if `activation` names one."""
        ...

    def row_parallel(self, bias_O: Tensor | None, all_reduce: AllReduce, num_ranks: int) -> Linear:
        """Returns the same for a rank that has a part of the inputs: the sum over all ranks. One rank has the bias."""
        ...

    def look_up(self, row_T: Tensor) -> Tensor:
        """Returns these rows [T, I]; `row_T` holds integers."""
        ...


class WeightFormat(Protocol):
    """A format. `name` is unique, and is what files of kept weights call it."""

    @property
    def name(self) -> str: ...

    @property
    def most_rows_added(self) -> int:
        """How many rows more than asked for `allocate` takes at most."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        """Returns a weight whose rows hold anything until they are set. Large ones on a CPU lie in huge pages."""
        ...

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> Weight:
        """Returns the weight of these `stored` and `numbers`."""
        ...


def sum_of_ranks(layer: Linear, all_reduce: AllReduce) -> Linear:
    """Returns a layer whose result is the sum of all ranks' results of `layer`."""
    return lambda x_TI, out_TO=None: all_reduce(layer(x_TI, out_TO))
