"""Rows of a matrix in blocks of quantized values, as a file holds them (block_forms.py).

Shape legend: O rows, I inputs, N blocks of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from kernels.arguments.block_forms import FORMS


@dataclass(frozen=True)
class BlockRows:
    """Rows that are whole blocks, one after the other."""

    blocks: Tensor
    """uint8 [O, N * bytes of a block]; the rows may lie anywhere, the bytes of one are contiguous."""
    form: str
    """A key of `FORMS`."""
    num_inputs: int
    release: Callable[[Tensor], None] = lambda blocks: None
    """Call it with parts of `blocks` that have been read: their memory is freed if they are those of a mapped file."""

    def __post_init__(self):
        assert self.blocks.shape[1] == row_bytes(self.form, self.num_inputs)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the values."""
        return len(self.blocks), self.num_inputs

    def part(self, rows: slice, columns: slice) -> "BlockRows":
        """Returns a view of these rows and columns; the columns are whole blocks."""
        begin, end, _ = columns.indices(self.num_inputs)
        blocks = self.blocks[rows, row_bytes(self.form, begin) : row_bytes(self.form, end)]
        return replace(self, blocks=blocks, num_inputs=end - begin)

    @property
    def T(self) -> "TransposedBlockRows":  # noqa: N802 (as torch names it)
        return TransposedBlockRows(self)


@dataclass(frozen=True)
class TransposedBlockRows:
    """The transpose of a matrix in blocks, which are read as the rows of the matrix."""

    T: BlockRows

    @property
    def shape(self) -> tuple[int, int]:
        num_rows, num_inputs = self.T.shape
        return num_inputs, num_rows


class Segment(NamedTuple):
    """Neighbouring rows of a weight in the same form."""

    form: str
    num_rows: int


def row_bytes(form: str, num_inputs: int) -> int:
    """Returns the bytes of a row, which is whole blocks."""
    num_blocks, num_beyond = divmod(num_inputs, FORMS[form].num_values)
    assert num_beyond == 0
    return num_blocks * FORMS[form].num_bytes
