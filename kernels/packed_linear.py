"""A linear layer whose weight lies as the processor's tiles read it.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, S steps of 32 inputs.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.library import find_kernel

STEP = 32
"""The number of inputs is a multiple of it."""


def has_tiles(weight_OI: Tensor) -> bool:
    """Whether there is a C kernel for such a weight: where there is none, packing it gains nothing."""
    return find_kernel("packed_linear", weight_OI) is not None and weight_OI.shape[1] % STEP == 0


def pack(weight_OI: Tensor) -> Tensor:
    """Returns a copy, [K, S, 2, 16, 16, 2]: outputs in two halves of a block, inputs in pairs; zeros fill the end.

    A block is one stretch of memory, in the order in which it is read.
    """
    num_outputs, num_inputs = weight_OI.shape
    assert num_inputs % STEP == 0
    num_blocks = -(-num_outputs // 32)
    filled = functional.pad(weight_OI, (0, 0, 0, 32 * num_blocks - num_outputs))
    return filled.view(num_blocks, 2, 16, num_inputs // STEP, 16, 2).permute(0, 3, 1, 4, 2, 5).contiguous()


def packed_linear(
    x_TI: Tensor, packed: Tensor, bias_O: Tensor | None, num_outputs: int, activation: Literal["tanh"] | None = None
) -> Tensor:
    """Returns x W^T + b [T, O], through the tanh form of GELU if `activation` says so; `packed` is of `pack`.

    A token's outputs are the same bits alone and in any batch.
    """
    kernel = find_kernel("packed_linear", x_TI)
    if kernel is None or not x_TI.is_contiguous():
        return packed_linear_reference(x_TI, packed, bias_O, num_outputs, activation)
    num_tokens, num_inputs = x_TI.shape
    assert packed.is_contiguous()
    assert packed.shape[:2] == (-(-num_outputs // 32), num_inputs // STEP)
    out_TO = torch.empty(num_tokens, num_outputs, dtype=x_TI.dtype)
    bias = None if bias_O is None else bias_O.data_ptr()
    addresses = x_TI.data_ptr(), packed.data_ptr(), bias, out_TO.data_ptr()
    kernel(*addresses, num_tokens, num_inputs, num_outputs, activation is not None)
    return out_TO


def packed_linear_reference(
    x_TI: Tensor, packed: Tensor, bias_O: Tensor | None, num_outputs: int, activation: Literal["tanh"] | None
) -> Tensor:
    weight_OI = packed.permute(0, 2, 4, 1, 3, 5).reshape(-1, x_TI.shape[1])[:num_outputs]
    out_TO = functional.linear(x_TI, weight_OI, bias_O)
    return out_TO if activation is None else functional.gelu(out_TO, approximate=activation)
