"""Layer and root-mean-square normalization in Triton: a program has a whole token in its registers.

Shape legend: T tokens, E embedding size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def normalize(
    name: str, x_TE: Tensor, weight_E: Tensor, bias_E: Tensor | None, eps: float, update_TE: Tensor | None
) -> Tensor:
    """Returns what the operation `name` does; with a bias the values are centered."""
    num_tokens, size = x_TE.shape
    assert all(each is None or each.is_contiguous() for each in (weight_E, bias_E, update_TE))
    assert x_TE.stride(1) == 1
    out_TE = torch.empty(x_TE.shape, dtype=x_TE.dtype, device=x_TE.device)
    norm_kernel[(num_tokens,)](
        x_TE,
        x_TE if update_TE is None else update_TE,
        weight_E,
        weight_E if bias_E is None else bias_E,
        out_TE,
        eps,
        SIZE=size,
        STRIDE=x_TE.stride(0),
        HAS_UPDATE=update_TE is not None,
        IS_CENTERED=bias_E is not None,
        **find_launch(name, size),
    )
    return out_TE


@triton.jit
def norm_kernel(
    x_ptr,
    update_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    IS_CENTERED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * STRIDE
    first = row * SIZE
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + columns, mask=mask, other=0.0)
    if HAS_UPDATE:
        update = tl.load(update_ptr + first + columns, mask=mask, other=0.0)
        x = (x.to(tl.float32) + update.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + columns, x, mask=mask)
    wide = x.to(tl.float32)
    if IS_CENTERED:
        wide = tl.where(mask, wide - tl.sum(wide, 0) / SIZE, 0.0)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if IS_CENTERED:
        out = normed * weight + tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    else:
        # Rounded before the weight is applied, as in the code that the models were trained with.
        out = normed.to(x_ptr.dtype.element_ty).to(tl.float32) * weight
    tl.store(out_ptr + first + columns, out.to(out_ptr.dtype.element_ty), mask=mask)
