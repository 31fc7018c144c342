"""Weights of integer codes with a scale and a zero point for each group of inputs.

Shape legend: O outputs, I inputs, G groups of inputs, N blocks of 32 inputs, B bytes, R rows, W words of a row.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.block_rows import BlockRows
from scheduler_proc.computing.loading.quantized.stored_linear import LinearWeight

BLOCK, BLOCK_SIZES = 32, (128, 64, 32)
"""Inputs of a block of floats, and of blocks of integers."""


class Groups(NamedTuple):
    """What codes mean: a value is (code - zero) * scale."""

    bits: int
    scales: Tensor
    """float32 [O, G]."""
    zeros: Tensor | None = None
    """Integers [O, G]; None if all are half the codes' range."""
    group_of_input: Tensor | None = None
    """int32 [I], if groups are not of neighbouring inputs (act-order)."""


def integer_weight(num_inputs: int, groups: Groups, read_codes: Callable[[], Tensor]) -> LinearWeight:
    """Returns blocks, or values if the inputs of a group are no multiple of a block's or if no byte holds a zero point.

    `read_codes` returns uint8 [O, I].
    """
    zeros = torch.full_like(groups.scales, 1 << groups.bits - 1) if groups.zeros is None else groups.zeros
    group = num_inputs // groups.scales.shape[1]
    size = next((size for size in BLOCK_SIZES if group % size == 0), None)
    if size is None or groups.group_of_input is not None or bool((zeros > 255).any()):
        return LinearWeight(None, lambda: _values(groups, zeros, read_codes()))
    form = f"I{4 if groups.bits <= 4 else 8}_{size}"
    parts = groups.scales, zeros.byte()

    def read() -> BlockRows:
        codes_ONI = read_codes().unflatten(1, (-1, size))
        of_blocks = [part.repeat_interleave(group // size, dim=1)[:, :, None].view(torch.uint8) for part in parts]
        bytes_ONB = pack_nibbles(codes_ONI) if groups.bits <= 4 else codes_ONI
        return BlockRows(torch.cat((*of_blocks, bytes_ONB), dim=2).flatten(1), form, num_inputs)

    return LinearWeight(form, read)


def _values(groups: Groups, zeros: Tensor, codes_OI: Tensor) -> Tensor:
    group_I = groups.group_of_input
    if group_I is not None:
        return (codes_OI.float() - zeros[:, group_I]) * groups.scales[:, group_I]
    codes_OGI = codes_OI.unflatten(1, (zeros.shape[1], -1)).float()
    return codes_OGI.sub_(zeros[:, :, None]).mul_(groups.scales[:, :, None]).flatten(1)


def unpack_words(words_RW: Tensor, bits: int) -> Tensor:
    """Returns the codes in rows of int32 words, uint8; a row is a string of bits, the lowest first."""
    bytes_RB = words_RW.contiguous().view(torch.uint8)
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return (bytes_RB[:, :, None] >> shifts & (1 << bits) - 1).flatten(1)
    first_bit = torch.arange(0, 8 * bytes_RB.shape[1] - bits + 1, bits)
    wide_RB = functional.pad(bytes_RB, (0, 1)).int()
    pair = wide_RB[:, first_bit // 8] | wide_RB[:, first_bit // 8 + 1] << 8
    return (pair >> first_bit % 8 & (1 << bits) - 1).byte()


def pack_nibbles(codes_ONI: Tensor) -> Tensor:
    """Returns the bytes of blocks, [O, N, B]; of 32 codes, the first 16 are the low halves."""
    first, last = codes_ONI.unflatten(2, (-1, 2, BLOCK // 2)).unbind(3)
    return (first | last << 4).flatten(2)
