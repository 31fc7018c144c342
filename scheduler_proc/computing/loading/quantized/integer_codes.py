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

BLOCK = 32
"""Inputs of a block."""


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
    """Returns blocks if they hold the values exactly, otherwise the values.

    `read_codes` returns uint8 [O, I]. Blocks of 32 inputs have one float16 scale; those of 8 bits have no zero point.
    """
    bits, scale_OG, zero_OG, group_I = groups
    is_symmetric = zero_OG is None or bool((zero_OG == 1 << bits - 1).all())
    is_exact = torch.equal(scale_OG.half().float(), scale_OG) and num_inputs // scale_OG.shape[1] % BLOCK == 0
    if not is_exact or group_I is not None or (bits > 4 and not is_symmetric):
        return LinearWeight(None, lambda: _values(groups, read_codes()))
    form = "Q8_0" if bits > 4 else "Q4_0" if is_symmetric else "I4"
    return LinearWeight(form, lambda: _blocks(form, groups, read_codes()))


def _values(groups: Groups, codes_OI: Tensor) -> Tensor:
    bits, scale_OG, zero_OG, group_I = groups
    zero_OG = torch.full_like(scale_OG, 1 << bits - 1) if zero_OG is None else zero_OG
    if group_I is not None:
        return (codes_OI.float() - zero_OG[:, group_I]) * scale_OG[:, group_I]
    codes_OGI = codes_OI.unflatten(1, (scale_OG.shape[1], -1)).float()
    return codes_OGI.sub_(zero_OG[:, :, None]).mul_(scale_OG[:, :, None]).flatten(1)


def _blocks(form: str, groups: Groups, codes_OI: Tensor) -> BlockRows:
    num_outputs, num_inputs = codes_OI.shape
    codes_ONI, half = codes_OI.unflatten(1, (-1, BLOCK)), 1 << groups.bits - 1
    numbers = [groups.scales.half()]
    match form:
        case "Q8_0":
            bytes_ONB = codes_ONI - half
        case "Q4_0":
            bytes_ONB = pack_nibbles(codes_ONI + (8 - half))
        case _:
            assert groups.zeros is not None
            bytes_ONB = pack_nibbles(codes_ONI)
            numbers.append(groups.zeros.short())
    repeats = codes_ONI.shape[1] // groups.scales.shape[1]
    of_blocks = [number_OG.repeat_interleave(repeats, dim=1)[:, :, None].view(torch.uint8) for number_OG in numbers]
    return BlockRows(torch.cat((*of_blocks, bytes_ONB), dim=2).view(num_outputs, -1), form, num_inputs)


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
    """Returns the bytes of blocks, [O, N, 16]; the low halves are the first codes of a block."""
    first_ONB, last_ONB = codes_ONI.chunk(2, dim=2)
    return first_ONB | last_ONB << 4
