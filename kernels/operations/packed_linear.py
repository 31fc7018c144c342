"""A linear layer whose weight is stored in the order in which the processor reads it.

Shape legend: T tokens, I inputs, O outputs; K blocks of 32 outputs, S inputs that are stored together: 2 in bfloat16, 1
in float32.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.huge_pages import empty_huge
from kernels.dispatch import call, find_implementation
from kernels.operations.gelu import GeluKind, gelu_reference

STEP, BLOCK = 32, 32
"""The number of inputs is a multiple of STEP; BLOCK outputs are stored together."""


def has_packed_kernel(weight_OI: Tensor) -> bool:
    return find_implementation("packed_linear", weight_OI) is not None


def has_rounding_kernel(device: torch.device) -> bool:
    """True if weights in bfloat16 can be multiplied with inputs in float32."""
    return find_implementation("rounded_linear", torch.empty(0, dtype=torch.bfloat16, device=device)) is not None


def pack(weight_OI: Tensor) -> Tensor:
    """Returns a copy, [K, I / S, 32, S], in huge pages; the last block is padded with zeros."""
    num_outputs, num_inputs = weight_OI.shape
    packed = allocate_packed(num_outputs, num_inputs, weight_OI.dtype)
    pack_rows(packed, 0, weight_OI)
    return packed


def allocate_packed(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Returns the tensor that `pack` returns, with uninitialised outputs for `pack_rows` to set.

    A block is one stretch of memory, read from its first byte to its last: on a Zen 4 core one token streams weights at
    32 GB/s. With each step's 32 outputs in two halves 1 KB apart it is 11 GB/s, in pages of 4 KB 17 GB/s.
    """
    assert num_inputs % STEP == 0
    num_together = 4 // dtype.itemsize
    packed = empty_huge((-(-num_outputs // BLOCK), num_inputs // num_together, BLOCK, num_together), dtype)
    if num_outputs % BLOCK:
        packed[-1].zero_()
    return packed


def pack_rows(packed: Tensor, first_output: int, rows_OI: Tensor) -> None:
    """Sets the outputs from `first_output` on; `rows_OI` may have another dtype and may be a transposed tensor."""
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
    activation: GeluKind | None = None,
    out_TO: Tensor | None = None,
) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names; `packed` comes from `pack`.

    A token's outputs are the same bits alone and in any batch. The result may be written to `out_TO`; otherwise it is
    a new tensor. If x is float32 and the weight bfloat16, x is rounded for the products alone: sums, bias and outputs
    are float32.
    """
    assert packed.shape[0] == -(-num_outputs // BLOCK)
    assert packed.shape[1] * packed.shape[3] == x_TI.shape[1]
    arguments = x_TI.contiguous(), packed, bias_O, num_outputs, activation, out_TO
    name = "packed_linear" if x_TI.dtype == packed.dtype else "rounded_linear"
    return call(name, packed, packed_linear_reference, *arguments)


def packed_linear_reference(
    x_TI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_outputs: int,
    activation: GeluKind | None,
    _out_TO: Tensor | None = None,
) -> Tensor:
    weight_OI = packed.transpose(1, 2).reshape(-1, x_TI.shape[1])[:num_outputs]
    x_TI = x_TI.to(packed.dtype).to(x_TI.dtype)
    return torch_linear(x_TI, weight_OI.to(x_TI.dtype), bias_O, activation)


def torch_linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, activation: GeluKind | None) -> Tensor:
    """Returns x W^T + b [T, O], followed by the GELU that `activation` names, in the dtype of x and W."""
    out_TO = functional.linear(x_TI, weight_OI, None if bias_O is None else bias_O.to(x_TI.dtype))
    return out_TO if activation is None else gelu_reference(out_TO, activation)
