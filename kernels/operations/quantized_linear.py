"""A linear layer whose weight is int8 or int4 codes, with a scale for each output or for each group of its inputs.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, N groups of G inputs.

A weight is its code times its scale (bfloat16). With 4 bits, each group of 32 inputs has a scale; activations become
codes of 8 bits with a scale per token and group, and 127 is the largest magnitude. With 8 bits, an output has one scale
and so has a token: a magnitude of `STEPS` is the mean of the token's. Activations far above their token's mean get
wider codes, as in LLM.int8() (Dettmers et al. 2022, section 3.2). Sums of codes are exact.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.codes import BLOCK, Bits, Codes, group_size
from kernels.dispatch import call

STEPS = 24.0
"""kernels/cpu/source/quantized_codes.h repeats it."""

LEAST_MAGNITUDE = 1e-30
ROWS_AT_ONCE = 8192
"""Outputs that torch quantizes at a time, which bounds its memory."""


def quantize(weight_OI: Tensor, bits: Bits, largest_O: Tensor | None = None) -> Codes:
    """Returns the weight rounded to `bits` bits; its values are finite. Every kernel makes the same codes.

    With 8 bits, `weight_OI` may have a part of the inputs: then `largest_O` is each output's largest magnitude over
    all of them.
    """
    assert largest_O is None or (largest_O.shape, largest_O.dtype, bits) == (weight_OI.shape[:1], weight_OI.dtype, 8)
    packed = call("quantize", weight_OI, quantize_reference, weight_OI.contiguous(), bits, largest_O)
    return Codes(packed, weight_OI.shape[0], weight_OI.shape[1], bits)


def quantize_reference(weight_OI: Tensor, bits: Bits, largest_O: Tensor | None = None) -> Tensor:
    least_O = weight_OI.new_zeros(len(weight_OI)) if largest_O is None else largest_O
    parts = zip(weight_OI.split(ROWS_AT_ONCE), least_O.split(ROWS_AT_ONCE), strict=True)
    return torch.cat([_quantize_rows(rows_OI, least_O, bits) for rows_OI, least_O in parts])


def dequantize(weight: Codes) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    scale_ON1, codes_ONG = _unpack(weight.packed, weight.bits)
    return (codes_ONG * scale_ON1).flatten(1)[: weight.num_outputs, : weight.num_inputs]


def sum_magnitudes(x_TI: Tensor) -> Tensor:
    """Returns the sum of magnitudes per token, float32 [T]; in the C kernels it does not depend on the batch."""
    return call("sum_magnitudes", x_TI, lambda x_TI: x_TI.float().abs().sum(1), x_TI.contiguous())


def quantized_linear(
    x_TI: Tensor,
    weight: Codes,
    bias_O: Tensor | None,
    activation: Literal["tanh"] | None = None,
    out_TO: Tensor | None = None,
    mean_T: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the tanh GELU if `activation` is set.

    In the C kernels a token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`;
    otherwise it is a new tensor. With 8 bits, `x_TI` may have a part of the inputs: then `mean_T` (float32) is the mean
    magnitude of each token over all.
    """
    assert mean_T is None or (mean_T.shape, mean_T.dtype, weight.bits) == (x_TI.shape[:1], torch.float32, 8)
    assert x_TI.shape[1] == weight.num_inputs
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    arguments = x_TI.contiguous(), weight, bias_O, activation, mean_T, out_TO
    return call("quantized_linear", x_TI, quantized_linear_reference, *arguments)


def quantized_linear_reference(
    x_TI: Tensor,
    weight: Codes,
    bias_O: Tensor | None,
    activation: Literal["tanh"] | None,
    mean_T: Tensor | None = None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    bias = None if bias_O is None else bias_O.float()
    out_TO = functional.linear(_round_activations(x_TI.float(), weight.bits, mean_T), dequantize(weight), bias)
    if activation is not None:
        out_TO = functional.gelu(out_TO, approximate=activation)
    return out_TO.to(x_TI.dtype)


def _round_activations(x_TI: Tensor, bits: Bits, mean_T: Tensor | None) -> Tensor:
    """Returns the activations rounded to their codes."""
    x_TNG = _group(x_TI, group_size(x_TI.shape[1], bits))
    if bits == 8:
        mean_T = x_TI.abs().sum(1) / x_TI.shape[1] if mean_T is None else mean_T
        steps, measure_TN1 = STEPS, mean_T[:, None, None]
    else:
        steps, measure_TN1 = 127.0, x_TNG.abs().amax(-1, keepdim=True)
    factor_TN1 = torch.where(measure_TN1 > LEAST_MAGNITUDE, steps / measure_TN1, 0.0)
    scale_TN1 = torch.where(measure_TN1 > LEAST_MAGNITUDE, measure_TN1 / steps, 0.0)
    scale_TN1 = scale_TN1.where(measure_TN1.isfinite(), torch.nan)
    return ((x_TNG * factor_TN1).round() * scale_TN1).flatten(1)[:, : x_TI.shape[1]]


def _group(x_RI: Tensor, group: int) -> Tensor:
    """Returns rows in groups [R, N, G], the last one padded with zeros."""
    return functional.pad(x_RI, (0, -x_RI.shape[1] % group)).unflatten(1, (-1, group))


def _quantize_rows(rows_OI: Tensor, least_O: Tensor, bits: Bits) -> Tensor:
    group = group_size(rows_OI.shape[1], bits)
    num_filling = -rows_OI.shape[0] % BLOCK
    weight_ONG = _group(functional.pad(rows_OI.float(), (0, 0, 0, num_filling)), group)
    if bits == 8:
        lowest, highest = -127, 127
        least_O11 = functional.pad(least_O.float(), (0, num_filling))[:, None, None]
        scale_ON1 = weight_ONG.abs().amax(-1, keepdim=True).maximum(least_O11) / highest
    else:
        # The largest magnitude becomes -8, which has no positive counterpart: the scale may be negative.
        lowest, highest = -8, 7
        scale_ON1 = weight_ONG.gather(-1, weight_ONG.abs().argmax(-1, keepdim=True)) / lowest
    scale_ON1 = scale_ON1.bfloat16()
    divisor_ON1 = scale_ON1.float().where(scale_ON1 != 0, 1.0)
    return _pack(scale_ON1, (weight_ONG / divisor_ON1).round_().clamp_(lowest, highest), bits)


def _pack(scale_ON1: Tensor, codes_ONG: Tensor, bits: Bits) -> Tensor:
    """Returns [K, N, bytes]: a group's 32 scales, then its codes, 4 neighbouring inputs of all 32 outputs together.

    Codes are stored unsigned, 128 or 8 higher. Two 4-bit codes share a byte: input i in its low half, and input i + 4.
    """
    num_groups = scale_ON1.shape[1]
    scales_KNB = scale_ON1.view(-1, BLOCK, num_groups).transpose(1, 2).contiguous().view(torch.uint8)
    unsigned = (codes_ONG + 2 ** (bits - 1)).to(torch.uint8).view(-1, BLOCK, *codes_ONG.shape[1:])
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
    codes = steps.permute(0, 3, 1, 2, 4).reshape(-1, num_groups, steps.shape[2] * 4)
    return scales.float(), codes.float() - 2 ** (bits - 1)
