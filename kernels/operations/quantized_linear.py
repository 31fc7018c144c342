"""A linear layer whose weight is int8 codes with a scale for each output.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs.

A weight is its code times the scale (bfloat16) of its output. Activations become codes of 8 bits, and a token has one
scale: a magnitude of `STEPS` is the mean of the token's. Activations far above their token's mean get wider codes, as
in LLM.int8() (Dettmers et al. 2022, section 3.2). Sums of codes are exact.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.arguments.codes import BLOCK, GROUP, Codes
from kernels.dispatch import call
from kernels.operations.gelu import GeluKind
from kernels.operations.packed_linear import torch_linear

STEPS = 24.0
"""kernels/cpu/source/quantized_codes.h repeats it."""

LEAST_MAGNITUDE = 1e-30
ROWS_AT_ONCE = 8192
"""Outputs that torch quantizes at a time, which bounds its memory."""


def quantize(weight_OI: Tensor, largest_O: Tensor | None = None) -> Codes:
    """Returns the weight rounded to 8 bits; its values are finite. Every kernel makes the same codes.

    `weight_OI` may have a part of the inputs: then `largest_O` is each output's largest magnitude over all of them.
    """
    assert largest_O is None or (largest_O.shape, largest_O.dtype) == (weight_OI.shape[:1], weight_OI.dtype)
    packed = call("quantize", weight_OI, quantize_reference, weight_OI.contiguous(), 8, largest_O)
    return Codes(packed, weight_OI.shape[0], weight_OI.shape[1])


def quantize_reference(weight_OI: Tensor, _bits: int, largest_O: Tensor | None) -> Tensor:
    least_O = weight_OI.new_zeros(len(weight_OI)) if largest_O is None else largest_O
    parts = zip(weight_OI.split(ROWS_AT_ONCE), least_O.split(ROWS_AT_ONCE), strict=True)
    return torch.cat([_quantize_rows(rows_OI, least_O) for rows_OI, least_O in parts])


def dequantize(weight: Codes) -> Tensor:
    """Returns the weight in float32, [O, I]."""
    scale_O1, codes_OI = _unpack(weight.packed)
    return (codes_OI * scale_O1)[: weight.num_outputs, : weight.num_inputs]


def sum_magnitudes(x_TI: Tensor) -> Tensor:
    """Returns the sum of magnitudes per token, float32 [T]; in the C kernels it does not depend on the batch."""
    return call("sum_magnitudes", x_TI, lambda x_TI: x_TI.float().abs().sum(1), x_TI.contiguous())


def quantized_linear(
    x_TI: Tensor,
    weight: Codes,
    bias_O: Tensor | None,
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
    mean_T: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names.

    In the C kernels a token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`;
    otherwise it is a new tensor. `x_TI` may have a part of the inputs: then `mean_T` (float32) is the mean magnitude of
    each token over all.
    """
    assert mean_T is None or (mean_T.shape, mean_T.dtype) == (x_TI.shape[:1], torch.float32)
    assert x_TI.shape[1] == weight.num_inputs
    assert bias_O is None or bias_O.dtype == x_TI.dtype
    arguments = x_TI.contiguous(), weight, bias_O, activation, mean_T, out_TO
    return call("quantized_linear", x_TI, quantized_linear_reference, *arguments)


def quantized_linear_reference(
    x_TI: Tensor,
    weight: Codes,
    bias_O: Tensor | None,
    activation: GeluKind | None,
    mean_T: Tensor | None = None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    rounded_TI = _round_activations(x_TI.float(), mean_T)
    return torch_linear(rounded_TI, dequantize(weight), bias_O, activation).to(x_TI.dtype)


def _round_activations(x_TI: Tensor, mean_T: Tensor | None) -> Tensor:
    """Returns the activations rounded to their codes."""
    mean_T1 = (x_TI.abs().sum(1) / x_TI.shape[1] if mean_T is None else mean_T)[:, None]
    factor_T1 = torch.where(mean_T1 > LEAST_MAGNITUDE, STEPS / mean_T1, 0.0)
    scale_T1 = torch.where(mean_T1 > LEAST_MAGNITUDE, mean_T1 / STEPS, 0.0)
    return (x_TI * factor_T1).round() * scale_T1.where(mean_T1.isfinite(), torch.nan)


def _quantize_rows(rows_OI: Tensor, least_O: Tensor) -> Tensor:
    num_filling = -rows_OI.shape[0] % BLOCK
    weight_OI = functional.pad(rows_OI.float(), (0, -rows_OI.shape[1] % GROUP, 0, num_filling))
    largest_O1 = weight_OI.abs().amax(1).maximum(functional.pad(least_O.float(), (0, num_filling)))[:, None]
    scale_O1 = (largest_O1 / 127).bfloat16()
    divisor_O1 = scale_O1.float().where(scale_O1 != 0, 1.0)
    return _pack(scale_O1, (weight_OI / divisor_O1).round_().clamp_(-127, 127))


def _pack(scale_O1: Tensor, codes_OI: Tensor) -> Tensor:
    """Returns [K, bytes]: a block's 32 scales, then its codes plus 128, 4 neighbouring inputs of an output together."""
    scales = scale_O1.view(-1, BLOCK).view(torch.uint8)
    fours = (codes_OI + 128).to(torch.uint8).view(-1, BLOCK, codes_OI.shape[1] // 4, 4).transpose(1, 2)
    return torch.cat((scales, fours.flatten(1)), dim=1)


def _unpack(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scales [O, 1] and codes [O, I] in float32."""
    scales = packed[:, : 2 * BLOCK].contiguous().view(torch.bfloat16).float().view(-1, 1)
    fours = packed[:, 2 * BLOCK :].unflatten(1, (-1, BLOCK, 4)).transpose(1, 2)
    return scales, fours.reshape(len(scales), -1).float() - 128
