"""A linear layer whose weight lies as the processor reads it.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, S inputs that lie together: 2 of bfloat16, 1
of float32.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.huge_pages import empty_huge
from kernels.cpu.library import loaded_isa
from kernels.dispatch import call, find_implementation

STEP, BLOCK = 32, 32
"""The number of inputs is a multiple of STEP; BLOCK outputs lie together."""


def has_packed_kernel(weight_OI: Tensor) -> bool:
    """Whether there is a C kernel for such a weight: where there is none, packing it gains nothing.

    For float32 there is one where torch has no wider vectors than it.
    """
    if weight_OI.shape[1] % STEP or find_implementation("packed_linear", weight_OI) is None:
        return False
    is_narrow = loaded_isa() == "avx2" and torch.backends.cpu.get_cpu_capability() != "AVX2"
    return weight_OI.dtype != torch.float32 or not is_narrow


def pack(weight_OI: Tensor) -> Tensor:
    """Returns a copy, [K, I / S, 32, S], in huge pages: zeros fill the last block."""
    num_outputs, num_inputs = weight_OI.shape
    packed = allocate_packed(num_outputs, num_inputs, weight_OI.dtype)
    pack_rows(packed, 0, weight_OI)
    return packed


def allocate_packed(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Returns what `pack` would, but outputs hold anything until `pack_rows` has set them.

    A block is one stretch of memory that is read from its first byte to its last. On a Zen 4 core one token streams
    weights at 32 GB/s so, at 11 where each step's 32 outputs are two halves 1 KB apart, at 17 in pages of 4 KB.
    """
    assert num_inputs % STEP == 0
    num_together = 4 // dtype.itemsize
    packed = empty_huge((-(-num_outputs // BLOCK), num_inputs // num_together, BLOCK, num_together), dtype)
    if num_outputs % BLOCK:
        packed[-1].zero_()
    return packed


def pack_rows(packed: Tensor, first_output: int, rows_OI: Tensor) -> None:
    """Sets the outputs from `first_output` on; `rows_OI` is cast where it must be, and may be a transposed tensor."""
    rows_OI, (num_outputs, num_inputs) = rows_OI.to(packed.dtype), rows_OI.shape
    assert num_inputs == packed.shape[1] * packed.shape[3]
    assert first_output + num_outputs <= BLOCK * len(packed)
    call("pack_linear", rows_OI, pack_rows_reference, packed, first_output, rows_OI)


def pack_rows_reference(packed: Tensor, first_output: int, rows_OI: Tensor) -> None:
    output_O = torch.arange(first_output, first_output + len(rows_OI))
    packed.transpose(1, 2)[output_O // BLOCK, output_O % BLOCK] = rows_OI.reshape(len(rows_OI), -1, packed.shape[3])


def unpack_rows(packed: Tensor, output_T: Tensor) -> Tensor:
    """Returns the weights of these outputs [T, I]; `output_T` holds integers."""
    return packed[output_T // BLOCK, :, output_T % BLOCK].flatten(1)


def packed_linear(
    x_TI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_outputs: int,
    activation: Literal["tanh"] | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], through the tanh approximation of GELU if `activation` says so; `packed` is of `pack`.

    A token's outputs are the same bits alone and in any batch. The result may be put into `out_TO`, and is a new tensor
    otherwise.
    """
    assert packed.shape[0] == -(-num_outputs // BLOCK)
    assert packed.shape[1] * packed.shape[3] == x_TI.shape[1]
    arguments = x_TI.contiguous(), packed, bias_O, num_outputs, activation, out_TO
    return call("packed_linear", x_TI, packed_linear_reference, *arguments)


def packed_linear_reference(
    x_TI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_outputs: int,
    activation: Literal["tanh"] | None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    weight_OI = packed.transpose(1, 2).reshape(-1, x_TI.shape[1])[:num_outputs]
    out_TO = functional.linear(x_TI, weight_OI, bias_O)
    return out_TO if activation is None else functional.gelu(out_TO, approximate=activation)
