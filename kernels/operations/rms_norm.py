"""Root-mean-square normalization with the residual addition before it.

Shape legend: T tokens, E embedding size. Formula: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

import torch
from torch import Tensor

from kernels.cpu.library import find_kernel
from kernels.gpu.triton_kernels import find_triton_kernel


def rms_norm(
    x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None = None, out_TE: Tensor | None = None
) -> Tensor:
    """Returns x / sqrt(mean(x²) + eps) * weight, computed in float32.

    With `update_TE`, `x_TE` is the residual stream and has it added in place first. The result may be put into
    `out_TE`, which is like `x_TE`, and is a new tensor otherwise.
    """
    assert x_TE.shape[-1:] == weight_E.shape
    assert x_TE.dtype == weight_E.dtype
    assert update_TE is None or (update_TE.shape == x_TE.shape and update_TE.dtype == x_TE.dtype)
    triton_kernel = find_triton_kernel("rms_norm", x_TE)
    if triton_kernel is not None:
        return triton_kernel(x_TE, weight_E, eps, update_TE)
    kernel = find_kernel("rms_norm", x_TE)
    if kernel is None:
        return rms_norm_reference(x_TE, weight_E, eps, update_TE)
    assert x_TE.is_contiguous()
    assert update_TE is None or update_TE.is_contiguous()
    out_TE = torch.empty_like(x_TE) if out_TE is None else out_TE
    assert out_TE.shape == x_TE.shape
    assert out_TE.is_contiguous()
    kernel(
        x_TE.data_ptr(),
        None if update_TE is None else update_TE.data_ptr(),
        weight_E.data_ptr(),
        out_TE.data_ptr(),
        x_TE.shape[0],
        x_TE.shape[1],
        eps,
    )
    return out_TE


def rms_norm_reference(x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None) -> Tensor:
    if update_TE is not None:
        x_TE.add_(update_TE)
    wide_TE = x_TE.float()
    scale_T1 = torch.rsqrt(wide_TE.square().mean(-1, keepdim=True).add_(eps))
    return (wide_TE * scale_T1).to(x_TE.dtype) * weight_E
