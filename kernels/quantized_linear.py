"""A linear layer whose weight is int8 or int4 codes with a scale for each group of inputs.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, N groups of G inputs.

A weight is its code times its group's scale (bfloat16). Activations become codes of 8 bits for the product, with a
scale for each token and group: 127 stands for the largest magnitude. Sums within a group are exact.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import find_kernel

Bits = Literal[4, 8]

GROUPS: dict[Bits, int] = {8: 64, 4: 32}
"""Inputs that have one scale, by the bits of a code; kernels/cpu/source/quantized_dot.h has both numbers too."""

BLOCK = 32
"""Outputs that lie together, there too."""

FACTOR_BYTES = 8
LEAST_MAGNITUDE = 1e-30
ROWS_AT_ONCE = 8192
"""Outputs that torch quantizes at once, which bounds the memory it takes."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight as the C kernel reads it."""

    packed: Tensor
    """uint8 [K, N, bytes of a group]: 32 scales, then codes; see `_pack`."""
    num_outputs: int
    num_inputs: int
    bits: Bits


def quantize(weight_OI: Tensor, bits: Bits) -> QuantizedWeight:
    """Returns the weight rounded to so many bits; its values are finite. Every kernel makes the same codes."""
    num_outputs, num_inputs = weight_OI.shape
    kernel = find_kernel("quantize", weight_OI)
    if kernel is None or not weight_OI.is_contiguous():
        return QuantizedWeight(quantize_reference(weight_OI, bits), num_outputs, num_inputs, bits)
    shape = (-(-num_outputs // BLOCK), -(-num_inputs // GROUPS[bits]), BLOCK * (2 + GROUPS[bits] * bits // 8))
    packed = empty_huge(shape, torch.uint8)
    kernel(weight_OI.data_ptr(), packed.data_ptr(), num_outputs, num_inputs, bits)
    return QuantizedWeight(packed, num_outputs, num_inputs, bits)


def quantize_reference(weight_OI: Tensor, bits: Bits) -> Tensor:
    return torch.cat([_quantize_rows(rows, bits) for rows in weight_OI.split(ROWS_AT_ONCE)])


def dequantize(weight: QuantizedWeight) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    scale_ON1, codes_ONG = _unpack(weight.packed, weight.bits)
    return (codes_ONG * scale_ON1).flatten(1)[: weight.num_outputs, : weight.num_inputs]


def quantized_linear(
    x_TI: Tensor,
    weight: QuantizedWeight,
    bias_O: Tensor | None,
    activation: Literal["tanh"] | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], through the tanh approximation of GELU if `activation` says so.

    A token's outputs are the same bits alone and in any batch, in the C kernels. The result may be put into `out_TO`,
    and is a new tensor otherwise.
    """
    kernel = find_kernel("quantized_linear", x_TI)
    if kernel is None or not x_TI.is_contiguous():
        return quantized_linear_reference(x_TI, weight, bias_O, activation)
    num_tokens, num_inputs = x_TI.shape
    assert num_inputs == weight.num_inputs
    assert weight.packed.is_contiguous()
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    out_TO = torch.empty(num_tokens, weight.num_outputs, dtype=x_TI.dtype) if out_TO is None else out_TO
    assert out_TO.shape == (num_tokens, weight.num_outputs)
    assert out_TO.is_contiguous()
    scratch = torch.empty(num_tokens * weight.packed.shape[1] * (GROUPS[weight.bits] + FACTOR_BYTES), dtype=torch.uint8)
    bias = None if bias_O is None else bias_O.data_ptr()
    addresses = x_TI.data_ptr(), weight.packed.data_ptr(), bias, out_TO.data_ptr(), scratch.data_ptr()
    kernel(*addresses, num_tokens, num_inputs, weight.num_outputs, weight.bits, activation is not None)
    return out_TO


def quantized_linear_reference(
    x_TI: Tensor, weight: QuantizedWeight, bias_O: Tensor | None, activation: Literal["tanh"] | None
) -> Tensor:
    bias = None if bias_O is None else bias_O.float()
    out_TO = functional.linear(_round_activations(x_TI.float(), GROUPS[weight.bits]), dequantize(weight), bias)
    if activation is not None:
        out_TO = functional.gelu(out_TO, approximate=activation)
    return out_TO.to(x_TI.dtype)


def _round_activations(x_TI: Tensor, group: int) -> Tensor:
    """Returns what the activations' codes stand for."""
    x_TNG = _group(x_TI, group)
    largest_TN1 = x_TNG.abs().amax(-1, keepdim=True)
    factor_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, 127.0 / largest_TN1, 0.0)
    codes_TNG = (x_TNG * factor_TN1).round()
    scale_TN1 = torch.where(largest_TN1 > LEAST_MAGNITUDE, largest_TN1 / 127.0, 0.0)
    return (codes_TNG * scale_TN1.where(x_TNG.isfinite().all(-1, keepdim=True), torch.nan)).flatten(1)[
        :, : x_TI.shape[1]
    ]


def _group(x_RI: Tensor, group: int) -> Tensor:
    """Returns rows in groups [R, N, G], the last filled with zeros."""
    return functional.pad(x_RI, (0, -x_RI.shape[1] % group)).unflatten(1, (-1, group))


def _quantize_rows(rows_OI: Tensor, bits: Bits) -> Tensor:
    weight_ONG = _group(functional.pad(rows_OI.float(), (0, 0, 0, -rows_OI.shape[0] % BLOCK)), GROUPS[bits])
    if bits == 8:
        lowest, highest = -127, 127
        scale_ON1 = weight_ONG.abs().amax(-1, keepdim=True) / highest
    else:
        # The largest magnitude becomes -8, which has no counterpart, whatever its sign: the scale may be negative.
        lowest, highest = -8, 7
        scale_ON1 = weight_ONG.gather(-1, weight_ONG.abs().argmax(-1, keepdim=True)) / lowest
    scale_ON1 = scale_ON1.bfloat16()
    divisor_ON1 = scale_ON1.float().where(scale_ON1 != 0, 1.0)
    return _pack(scale_ON1, (weight_ONG / divisor_ON1).round_().clamp_(lowest, highest), bits)


def _pack(scale_ON1: Tensor, codes_ONG: Tensor, bits: Bits) -> Tensor:
    """Returns [K, N, bytes]: a group's 32 scales, then its codes, of 4 neighbouring inputs of all 32 outputs together.

    Codes are stored without sign, 128 or 8 higher. Two of 4 bits share a byte: that of input i, low, and of i + 4.
    """
    num_groups = scale_ON1.shape[1]
    scales_KNB = scale_ON1.view(-1, BLOCK, num_groups).transpose(1, 2).contiguous().view(torch.uint8)
    unsigned = (codes_ONG + 2 ** (bits - 1)).to(torch.uint8).view(-1, BLOCK, num_groups, GROUPS[bits])
    steps = unsigned.unflatten(3, (-1, 4)).permute(0, 2, 3, 1, 4)  # [K, N, G / 4, 32, 4]
    if bits == 4:
        steps = steps[:, :, 0::2] | steps[:, :, 1::2] << 4
    return torch.cat((scales_KNB, steps.flatten(2)), dim=2)


def _unpack(packed: Tensor, bits: Bits) -> tuple[Tensor, Tensor]:
    """Returns scales [O, N, 1] and codes [O, N, G] in float32."""
    num_groups = packed.shape[1]
    scales = packed[..., : 2 * BLOCK].contiguous().view(torch.bfloat16).transpose(1, 2).reshape(-1, num_groups, 1)
    steps = packed[..., 2 * BLOCK :].unflatten(2, (-1, BLOCK, 4))
    if bits == 4:
        steps = torch.stack((steps & 15, steps >> 4), dim=3).flatten(2, 3)
    codes = steps.permute(0, 3, 1, 2, 4).reshape(-1, num_groups, GROUPS[bits])
    return scales.float(), codes.float() - 2 ** (bits - 1)
