"""Weights of 8- and 4-bit floats with scales.

Shape legend: O outputs, I inputs, N blocks of 32 inputs, Y and X blocks of outputs and of inputs that share a scale,
B bytes, R rows.
"""

from math import ceil

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from scheduler_proc.computing.loading.quantized.integer_codes import BLOCK, BLOCK_SIZES
from scheduler_proc.computing.loading.quantized.stored_linear import FLOATS, LinearWeight, StoredLinear

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NVFP4_GROUP = 16
NAN_CODE = 0x7F


def fp8_weight(linear: StoredLinear, scale_ending: str, block: tuple[int, int] | None) -> LinearWeight:
    """Returns the float8_e4m3fn codes of a linear times the scale of their `block`; the last ones may be cut off.

    Without `block`, there is one scale, or one per output. The result is blocks; if the inputs of a scale are no
    multiple of a block's, values.
    """
    codes_OI = linear.tensor("weight", (torch.float8_e4m3fn,))
    num_outputs, num_inputs = codes_OI.shape
    if block is not None:
        shapes = [(ceil(num_outputs / block[0]), ceil(num_inputs / block[1]))]
    else:
        shapes = [(), (1,), (1, 1), (num_outputs, 1), (num_outputs,)]
    scale = linear.scale(scale_ending, (*FLOATS, torch.float8_e8m0fnu), *shapes)
    if block is None:
        scale, block = scale.reshape(-1, 1), (num_outputs // scale.numel(), num_inputs)
    scale_OX = scale.repeat_interleave(block[0], dim=0)[:num_outputs]
    of_inputs, is_one = block[1], scale_OX.shape[1] == 1
    size = next((size for size in BLOCK_SIZES if num_inputs % size == 0 and (is_one or of_inputs % size == 0)), None)
    if size is None:
        return LinearWeight(
            None, lambda: codes_OI.float() * scale_OX.repeat_interleave(of_inputs, dim=1)[:, :num_inputs]
        )
    form = f"F8_{size}"

    def read() -> BlockRows:
        bytes_OI = codes_OI.contiguous().view(torch.uint8)
        if bool((bytes_OI & NAN_CODE == NAN_CODE).any()):
            raise linear.error("weight", "holds NaN")
        scale_ON = scale_OX.repeat_interleave(ceil(of_inputs / size), dim=1)[:, : num_inputs // size].contiguous()
        parts_ONB = scale_ON[:, :, None].view(torch.uint8), bytes_OI.unflatten(1, (-1, size))
        return BlockRows(torch.cat(parts_ONB, dim=2).flatten(1), form, num_inputs)

    return LinearWeight(form, read)


def mxfp4_rows(bytes_OB: Tensor, exponent_ON: Tensor) -> BlockRows:
    """Returns E2M1 codes, the even ones in low halves, with a power of two (uint8, 127 is 1) per 32 inputs."""
    first, last = bytes_OB.unflatten(1, (-1, 2, BLOCK // 4)).unbind(2)
    blocks_ONB = torch.empty(*exponent_ON.shape, 1 + BLOCK // 2, dtype=torch.uint8)
    blocks_ONB[:, :, 0] = exponent_ON
    blocks_ONB[:, :, 1::2] = first & 15 | last << 4
    blocks_ONB[:, :, 2::2] = first >> 4 | last & 0xF0
    return BlockRows(blocks_ONB.flatten(1), "MXFP4", 2 * bytes_OB.shape[1])


def nvfp4_weight(bytes_OB: Tensor, scale_OG: Tensor) -> LinearWeight:
    """Returns E2M1 codes, the even ones in low halves, times the scales of groups of 16, in float32."""

    def read() -> Tensor:
        values_OI = torch.tensor(E2M1)[split_nibbles(bytes_OB).int()]
        return (values_OI.unflatten(1, (-1, NVFP4_GROUP)) * scale_OG[:, :, None]).flatten(1)

    return LinearWeight(None, read)


def split_nibbles(bytes_RB: Tensor) -> Tensor:
    """Returns both halves of each byte, the low one first."""
    return torch.stack((bytes_RB & 15, bytes_RB >> 4), dim=-1).flatten(1)
