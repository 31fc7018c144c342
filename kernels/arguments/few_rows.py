"""Arguments of the products of steps with few tokens, which do the work before and after them in the same kernel.

Shape legend: T tokens, I inputs, O outputs, E embedding size.
"""

from typing import Literal, NamedTuple

from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables

FEW_ROWS = 8
"""The most tokens of a step that has few."""


class PlainMatrix(NamedTuple):
    """A linear layer whose weight is a plain tensor."""

    weight: Tensor
    """[O, I], contiguous"""
    bias: Tensor | None
    """[O]"""


class RowNorm(NamedTuple):
    """The root-mean-square norm before a product: `kernels/operations/rms_norm.py`."""

    weight: Tensor
    """[I]"""
    eps: float


class StoreHeads(NamedTuple):
    """Afterwards the outputs are heads, as of `rotate_store.py`; all values of a query or a key are rotated."""

    cache: PagedKV
    tables: RopeTables
    positions: Tensor
    slots: Tensor
    norms: HeadNorms | None
    """Without norms of values."""


GateKind = Literal["silu", "tanh", "exact"]
"""SiLU or a GELU."""


class Gate(NamedTuple):
    """Afterwards the first half of the outputs is activated and multiplied by the second."""

    kind: GateKind


class AddTo(NamedTuple):
    """Afterwards the outputs are added to the residual stream, in place."""

    residual: Tensor
    """[T, E]"""


class Best(NamedTuple):
    """Afterwards the outputs are logits, of which each token's largest is found: `greedy` of `sample.py`."""


Epilogue = StoreHeads | Gate | AddTo | Best
