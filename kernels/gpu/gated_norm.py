"""The Triton kernel of `gated_norm`: a program has whole groups of a token in its registers.

Shape legend: T tokens, N values, W = N or the values of a group; in a program P groups, I values of each.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def gated_norm(
    values_TN: Tensor, gate_TN: Tensor, weight_W: Tensor | None, eps: float, group_size: int, norms_first: bool
) -> None:
    num_tokens, size = values_TN.shape
    assert weight_W is None or weight_W.is_contiguous()
    launch = find_launch("gated_norm", group_size)
    if num_tokens:
        gated_norm_kernel[(num_tokens, triton.cdiv(size // group_size, launch["GROUPS"]))](
            values_TN,
            gate_TN,
            values_TN if weight_W is None else weight_W,
            eps,
            values_TN.stride(0),
            gate_TN.stride(0),
            SIZE=size,
            GROUP_SIZE=group_size,
            HAS_WEIGHT=weight_W is not None,
            HAS_ONE_WEIGHT=weight_W is not None and len(weight_W) == group_size,
            NORMS_FIRST=norms_first,
            **launch,
        )


@triton.jit
def gated_norm_kernel(
    values,
    gate,
    weight,
    eps,
    values_stride,
    gate_stride,
    SIZE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_ONE_WEIGHT: tl.constexpr,
    NORMS_FIRST: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first_P = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)) * GROUP_SIZE
    index_I = tl.arange(0, BLOCK)
    place_PI = first_P[:, None] + index_I[None, :]
    is_PI = (first_P < SIZE)[:, None] & (index_I < GROUP_SIZE)[None, :]
    values += row * values_stride + place_PI
    value_PI = tl.load(values, mask=is_PI, other=0.0).to(tl.float32)
    gate_PI = tl.load(gate + row * gate_stride + place_PI, mask=is_PI, other=0.0).to(tl.float32)
    gate_PI = gate_PI / (1.0 + tl.exp(-gate_PI))
    if not NORMS_FIRST or not HAS_WEIGHT:
        value_PI *= gate_PI
    if HAS_WEIGHT:
        value_PI *= tl.rsqrt(tl.sum(value_PI * value_PI, 1) / GROUP_SIZE + eps)[:, None]
        weight_PI = weight + (place_PI % GROUP_SIZE if HAS_ONE_WEIGHT else place_PI)
        value_PI *= tl.load(weight_PI, mask=is_PI, other=0.0).to(tl.float32)
        if NORMS_FIRST:
            value_PI *= gate_PI
    tl.store(values, value_PI.to(values.dtype.element_ty), mask=is_PI)
