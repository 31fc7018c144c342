"""A weight in the block forms of its file, or quantized, packed for the C kernel of `block_linear.py`.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows, Segment
from kernels.arguments.packed_blocks import PackedBlocks, packed_bytes
from kernels.arguments.packed_forms import FORMS
from kernels.arguments.routes import Routes
from kernels.cpu.huge_pages import empty_huge
from kernels.formats.weight_format import AllReduce, Linear, Ranks, Rows, Weight, WeightFormat
from kernels.operations.block_linear import (
    MAX_SEGMENTS,
    block_linear,
    has_finite_scales,
    look_up_rows,
    pack_block_rows,
)
from kernels.operations.expert_codes import block_experts
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind
from kernels.operations.quantize import sum_magnitudes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of activations."""

FORM_NAMES = tuple(FORMS)


class PackedBlocksFormat(WeightFormat):
    """`segments` are those of the weights that it allocates."""

    name = "packed blocks"

    def __init__(self, segments: Sequence[Segment] = ()):
        self._segments = tuple(segments)

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return packed_bytes(self._segments, shape[1])

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "PackedBlocksWeight":
        assert shape[0] == sum(num_rows for _, num_rows in self._segments)
        stored = empty_huge((self.num_bytes(shape, dtype),), torch.uint8)
        return PackedBlocksWeight(PackedBlocks(stored, self._segments, shape[1]), dtype)

    def restore(self, stored: Tensor, numbers: tuple[int, ...]) -> "PackedBlocksWeight":
        dtype, num_inputs, *words = numbers
        segments = tuple(Segment(FORM_NAMES[form], num_rows) for form, num_rows in _pairs(words))
        return PackedBlocksWeight(PackedBlocks(stored, segments, num_inputs), DTYPES[dtype])


PACKED_BLOCKS = PackedBlocksFormat()


@dataclass(frozen=True)
class PackedBlocksWeight(Weight):
    """Looked-up rows are in `dtype`."""

    blocks: PackedBlocks
    dtype: torch.dtype
    format = PACKED_BLOCKS

    @property
    def stored(self) -> Tensor:
        return self.blocks.stored

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of the dtype, the inputs, and of each segment the number of its form and its rows."""
        words = [word for form, num_rows in self.blocks.segments for word in (FORM_NAMES.index(form), num_rows)]
        return DTYPES.index(self.dtype), self.blocks.num_inputs, *words

    def set_rows(self, first_row: int, rows: Rows) -> None:
        """The rows are of one segment."""
        assert isinstance(rows, BlockRows)
        for index, (form, num_rows) in enumerate(self.blocks.segments):
            if first_row < num_rows:
                assert form == rows.form
                pack_block_rows(self.blocks, index, first_row, rows.blocks.contiguous())
                return
            first_row -= num_rows

    def finish(self, largest_O: Tensor | None = None) -> "PackedBlocksWeight":
        assert largest_O is None
        if not has_finite_scales(self.blocks):
            raise ValueError("a scale is NaN or infinite")
        return self

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """The GELU is part of the product."""
        blocks = self.blocks
        return lambda x_TI, out_TO=None: block_linear(x_TI, blocks, bias_O, activation, out_TO)

    def row_parallel(self, bias_O: Tensor | None, all_reduce: AllReduce, num_ranks: int) -> Linear:
        if not self._has_token_scales:
            return super().row_parallel(bias_O, all_reduce, num_ranks)

        def apply(x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
            mean_T = self._means(x_TI, all_reduce, num_ranks)
            return all_reduce(block_linear(x_TI, self.blocks, bias_O, None, out_TO, mean_T))

        return apply

    @property
    def _has_token_scales(self) -> bool:
        return FORMS[self.blocks.segments[0][0]].has_token_scales

    def _means(self, x_TI: Tensor, all_reduce: AllReduce, num_ranks: int) -> Tensor:
        """Returns the mean magnitude of each token [T], of which each rank has a part."""
        return all_reduce(sum_magnitudes(x_TI)) / (self.blocks.num_inputs * num_ranks)

    def experts(self, bias_O: Tensor | None, ranks: Ranks | None = None) -> ExpertLinear:
        if ranks is None or not self._has_token_scales:
            return partial(block_experts, self.blocks, bias_O)

        def apply(x_RI: Tensor, routes: Routes, out_RO: Tensor | None, /) -> Tensor:
            return block_experts(
                self.blocks, bias_O, x_RI, routes, out_RO, self._means(x_RI, ranks.all_reduce, ranks.size)
            )

        return apply

    def look_up(self, row_T: Tensor) -> Tensor:
        return look_up_rows(self.blocks, row_T, self.dtype)


def _pairs(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(words[::2], words[1::2], strict=True)


def can_pack(segments: Sequence[Segment]) -> bool:
    """True if the C kernel computes in the forms of these segments."""
    return 0 < len(segments) <= MAX_SEGMENTS and all(form in FORMS for form, _ in segments)
