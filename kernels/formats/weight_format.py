"""The protocols of weight formats. No other code distinguishes formats.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind

Rows = Tensor | BlockRows
"""Rows of a matrix in a checkpoint."""

AllReduce = Callable[[Tensor], Tensor]
"""Sums the tensors of all ranks, in place."""


class Ranks(Protocol):
    """The ranks that have a part of a weight's inputs each."""

    size: int

    def all_reduce(self, part_TE: Tensor, /) -> Tensor:
        """See `AllReduce`."""
        ...


class Linear(Protocol):
    """A linear layer, ready to be applied."""

    def __call__(self, x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
        """Returns [T, O], in `out_TO` if the kernel can put it there."""
        ...


class Weight:
    """A parameter in its format. All formats hold matrices [O, I]; a plain one may have any shape.

    By default it is ready once its rows are set, and ranks sum what `linear` returns.
    """

    format: "WeightFormat"
    stored: Tensor
    """The one tensor that holds it, as kept in shared memory or on disk."""
    numbers: tuple[int, ...]
    """The arguments of `WeightFormat.restore` in addition to the stored tensor."""

    @property
    def matrix(self) -> Tensor | None:
        """[O, I], if the device's kernels read it so as it is stored; else `None`."""
        return None

    def set_rows(self, first_row: int, rows: Rows) -> None:
        """Sets the rows from `first_row` on; `rows` may have another dtype, and may be a transposed tensor."""
        raise NotImplementedError

    def finish(self, largest_O: Tensor | None = None) -> "Weight":
        """Returns the weight ready for use; call it once all rows are set, and `set_rows` no more.

        `largest_O`: the largest magnitude per output over the inputs of all ranks, if this rank has a part of them.
        Raises `ValueError` if scales of its blocks are NaN or infinite.
        """
        assert largest_O is None
        return self

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """Returns x W^T + b, followed by the GELU if `activation` names one."""
        raise NotImplementedError

    def row_parallel(self, bias_O: Tensor | None, all_reduce: AllReduce, num_ranks: int) -> Linear:
        """Like `linear`, for a rank with a part of the inputs; it sums over all ranks. One rank has the bias."""
        linear = self.linear(bias_O, None)
        return lambda x_TI, out_TO=None: all_reduce(linear(x_TI, out_TO))

    def experts(self, bias_O: Tensor | None, ranks: Ranks | None = None) -> ExpertLinear:
        """Returns the linear layers of experts, whose outputs are rows of this weight, one expert's after another's.

        `bias_O` has the biases of all of them. With `ranks`, x has this rank's part of the inputs; the outputs are not
        summed. Not all formats have experts.
        """
        raise NotImplementedError

    def look_up(self, row_T: Tensor) -> Tensor:
        """Returns these rows [T, I]; `row_T` holds integers."""
        raise NotImplementedError


class WeightFormat:
    """A format. `name` is unique and identifies it in files of cached weights."""

    name: str

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Returns the bytes of a weight once its rows are set: until then, one that is quantized takes more."""
        raise NotImplementedError

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
        """Returns a weight with uninitialised rows. On a CPU, large ones are in huge pages."""
        raise NotImplementedError

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> Weight:
        """Returns the weight with these `stored` and `numbers`; those of GPUs are not kept."""
        raise NotImplementedError
