"""Rows of a matrix in blocks of quantized values, as a GGUF file holds them.

Shape legend: O rows, I inputs, N blocks of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor


class BlockForm(NamedTuple):
    """The size of a block, which holds neighbouring values of one row."""

    num_values: int
    num_bytes: int
    halves: tuple[int, ...] = (0,)
    """The bytes at which its float16 numbers begin: a scale, and in some forms a minimum."""


GGUF_FORMS = {
    "Q4_0": BlockForm(32, 18),
    "Q4_1": BlockForm(32, 20, (0, 2)),
    "Q5_0": BlockForm(32, 22),
    "Q5_1": BlockForm(32, 24, (0, 2)),
    "Q8_0": BlockForm(32, 34),
    "IQ4_NL": BlockForm(32, 18),
    "MXFP4": BlockForm(32, 17, ()),
    "Q2_K": BlockForm(256, 84, (80, 82)),
    "Q3_K": BlockForm(256, 110, (108,)),
    "Q4_K": BlockForm(256, 144, (0, 2)),
    "Q5_K": BlockForm(256, 176, (0, 2)),
    "Q6_K": BlockForm(256, 210, (208,)),
    "IQ4_XS": BlockForm(256, 136),
}
"""By ggml's names. What their bytes mean: kernels/operations/dequantize_blocks.py."""

INTEGER_FORMS = {
    f"I{bits}_{size}": BlockForm(size, 5 + size * bits // 8, ()) for bits in (4, 8) for size in (32, 64, 128)
}
"""A float32 scale, a byte's zero point, and unsigned codes in the order of Q4_0 or Q8_0."""

FLOAT_FORMS = {f"F8_{size}": BlockForm(size, 4 + size, ()) for size in (32, 64, 128)}
"""A float32 scale and float8_e4m3fn codes."""

FORMS = GGUF_FORMS | INTEGER_FORMS | FLOAT_FORMS


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
        num_values, num_bytes, _ = FORMS[self.form]
        assert self.blocks.shape[1] * num_values == self.num_inputs * num_bytes

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the values."""
        return len(self.blocks), self.num_inputs

    def part(self, rows: slice, columns: slice) -> "BlockRows":
        """Returns a view of these rows and columns; the columns are whole blocks."""
        num_values, num_bytes, _ = FORMS[self.form]
        begin, end, _ = columns.indices(self.num_inputs)
        assert begin % num_values == end % num_values == 0
        blocks = self.blocks[rows, begin // num_values * num_bytes : end // num_values * num_bytes]
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
    """Returns the bytes of a row."""
    return num_inputs // FORMS[form].num_values * FORMS[form].num_bytes
