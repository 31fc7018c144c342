"""A linear layer whose weight lies as the processor reads it.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, P pairs of inputs.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import find_kernel

STEP, BLOCK = 32, 32
"""The number of inputs is a multiple of STEP; BLOCK outputs lie together."""


def has_packed_form(weight_OI: Tensor) -> bool:
    """Whether there is a C kernel for such a weight: where there is none, packing it gains nothing."""
    return find_kernel("packed_linear", weight_OI) is not None and weight_OI.shape[1] % STEP == 0


def pack(weight_OI: Tensor) -> Tensor:
    """Returns a copy, [K, P, 32, 2], in huge pages: zeros fill the last block.

    A block is one stretch of memory that is read from its first byte to its last. On a Zen 4 core one token streams
    weights at 32 GB/s so, at 11 where each step's 32 outputs are two halves 1 KB apart, at 17 in pages of 4 KB.
    """
    num_outputs, num_inputs = weight_OI.shape
    assert num_inputs % STEP == 0
    num_blocks, num_pairs = -(-num_outputs // BLOCK), num_inputs // 2
    packed = empty_huge((num_blocks, num_pairs, BLOCK, 2), weight_OI.dtype)
    num_whole = num_outputs // BLOCK
    whole = weight_OI[: num_whole * BLOCK].view(num_whole, BLOCK, num_pairs, 2)
    packed[:num_whole].copy_(whole.permute(0, 2, 1, 3))
    if num_whole < num_blocks:
        rest = weight_OI[num_whole * BLOCK :]
        packed[num_whole].zero_()
        packed[num_whole, :, : len(rest)].copy_(rest.view(len(rest), num_pairs, 2).transpose(0, 1))
    return packed


def packed_linear(
    x_TI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_outputs: int,
    activation: Literal["tanh"] | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], through the tanh form of GELU if `activation` says so; `packed` is of `pack`.

    A token's outputs are the same bits alone and in any batch. The result may be put into `out_TO`, and is a new tensor
    otherwise.
    """
    kernel = find_kernel("packed_linear", x_TI)
    if kernel is None or not x_TI.is_contiguous():
        return packed_linear_reference(x_TI, packed, bias_O, num_outputs, activation)
    num_tokens, num_inputs = x_TI.shape
    assert packed.is_contiguous()
    assert packed.shape[:2] == (-(-num_outputs // BLOCK), num_inputs // 2)
    out_TO = torch.empty(num_tokens, num_outputs, dtype=x_TI.dtype) if out_TO is None else out_TO
    assert out_TO.shape == (num_tokens, num_outputs)
    assert out_TO.is_contiguous()
    bias = None if bias_O is None else bias_O.data_ptr()
    addresses = x_TI.data_ptr(), packed.data_ptr(), bias, out_TO.data_ptr()
    kernel(*addresses, num_tokens, num_inputs, num_outputs, activation is not None)
    return out_TO


def packed_linear_reference(
    x_TI: Tensor, packed: Tensor, bias_O: Tensor | None, num_outputs: int, activation: Literal["tanh"] | None
) -> Tensor:
    weight_OI = packed.transpose(1, 2).reshape(-1, x_TI.shape[1])[:num_outputs]
    out_TO = functional.linear(x_TI, weight_OI, bias_O)
    return out_TO if activation is None else functional.gelu(out_TO, approximate=activation)
