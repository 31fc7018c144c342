"""The Triton kernel of `rms_norm`: one program a row, which is in registers between the addition and the norm.

Shape legend: T tokens, E embedding size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch_table import find_launch


def rms_norm(x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None, _out_TE: Tensor | None) -> Tensor:
    num_tokens, size = x_TE.shape
    assert x_TE.is_contiguous()
    assert weight_E.is_contiguous()
    assert update_TE is None or update_TE.is_contiguous()
    out_TE = torch.empty_like(x_TE)
    has_update = update_TE is not None
    rms_norm_kernel[(num_tokens,)](
        x_TE,
        update_TE if has_update else x_TE,
        weight_E,
        out_TE,
        eps,
        SIZE=size,
        HAS_UPDATE=has_update,
        **find_launch("rms_norm", size),
    )
    return out_TE


@triton.jit
def rms_norm_kernel(
    x_ptr, update_ptr, weight_ptr, out_ptr, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_UPDATE: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * SIZE
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + first + columns, mask=mask, other=0.0)
    if HAS_UPDATE:
        update = tl.load(update_ptr + first + columns, mask=mask, other=0.0)
        x = (x.to(tl.float32) + update.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + first + columns, x, mask=mask)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    # Rounded before it is weighted, as the models do that it was trained in.
    normed = (wide * scale).to(x_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + first + columns, (normed * weight).to(out_ptr.dtype.element_ty), mask=mask)
