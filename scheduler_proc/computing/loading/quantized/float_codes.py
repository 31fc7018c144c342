"""Weights of 8- and 4-bit floats with scales.

Shape legend: O outputs, I inputs, N blocks of 32 inputs, Y and X blocks of outputs and of inputs that share a scale,
B bytes, R rows.
"""

from math import ceil

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from scheduler_proc.computing.loading.quantized.integer_codes import BLOCK, pack_nibbles
from scheduler_proc.computing.loading.quantized.stored_linear import FLOATS, LinearWeight, StoredLinear

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NVFP4_GROUP = 16


def fp8_weight(linear: StoredLinear, scale_ending: str, block: tuple[int, int] | None) -> LinearWeight:
    """Returns the float8_e4m3fn codes of a linear times the scale of their `block`; the last ones may be cut off.

    Without `block`, there is one scale, or one per output. The result is blocks of 32 inputs; if those of one scale are
    no multiple of 32, values in float32.
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
    of_inputs = block[1]
    if num_inputs % BLOCK or (scale_OX.shape[1] > 1 and of_inputs % BLOCK):
        return LinearWeight(
            None, lambda: codes_OI.float() * scale_OX.repeat_interleave(of_inputs, dim=1)[:, :num_inputs]
        )

    def read() -> BlockRows:
        scale_ON = scale_OX.repeat_interleave(ceil(of_inputs / BLOCK), dim=1)[:, : num_inputs // BLOCK].contiguous()
        codes_ONI = codes_OI.contiguous().view(torch.uint8).unflatten(1, (-1, BLOCK))
        return _join("F8", scale_ON[:, :, None].view(torch.uint8), codes_ONI)

    return LinearWeight("F8", read)


def mxfp4_weight(bytes_OB: Tensor, exponent_ON: Tensor) -> LinearWeight:
    """Returns E2M1 codes, the even ones in low halves, with a power of two (uint8, 127 is 1) per 32 inputs."""

    def read() -> BlockRows:
        codes_ONI = split_nibbles(bytes_OB).unflatten(1, (-1, BLOCK))
        return _join("MXFP4", exponent_ON[:, :, None], pack_nibbles(codes_ONI))

    return LinearWeight("MXFP4", read)


def nvfp4_weight(bytes_OB: Tensor, scale_OG: Tensor) -> LinearWeight:
    """Returns E2M1 codes, the even ones in low halves, times the scales of groups of 16, in float32."""

    def read() -> Tensor:
        values_OI = torch.tensor(E2M1)[split_nibbles(bytes_OB).int()]
        return (values_OI.unflatten(1, (-1, NVFP4_GROUP)) * scale_OG[:, :, None]).flatten(1)

    return LinearWeight(None, read)


def split_nibbles(bytes_RB: Tensor) -> Tensor:
    """Returns both halves of each byte, the low one first."""
    return torch.stack((bytes_RB & 15, bytes_RB >> 4), dim=-1).flatten(1)


def _join(form: str, *parts_ONB: Tensor) -> BlockRows:
    blocks_ONB = torch.cat(parts_ONB, dim=2)
    return BlockRows(blocks_ONB.flatten(1), form, blocks_ONB.shape[1] * BLOCK)
