"""Root-mean-square normalization with the residual addition before it.

Shape legend: T tokens, E embedding size. Formula: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

import torch
from torch import Tensor

from kernels.dispatch import call


def rms_norm(
    x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None = None, out_TE: Tensor | None = None
) -> Tensor:
    """Returns x / sqrt(mean(x²) + eps) * weight, computed in float32.

    With `update_TE`, `x_TE` is the residual stream and has it added in place first. The result may be
    written to `out_TE`, which is like `x_TE` or is `x_TE` itself; otherwise it is a new tensor. Rows may lie apart.
    """
    assert x_TE.shape[-1:] == weight_E.shape
    assert x_TE.dtype == weight_E.dtype
    assert update_TE is None or (update_TE.shape == x_TE.shape and update_TE.dtype == x_TE.dtype)
    assert out_TE is None or out_TE.shape == x_TE.shape
    return call("rms_norm", x_TE, rms_norm_reference, x_TE, weight_E, eps, update_TE, out_TE)


def rms_norm_reference(
    x_TE: Tensor, weight_E: Tensor, eps: float, update_TE: Tensor | None, _out_TE: Tensor | None = None
) -> Tensor:
    if update_TE is not None:
        x_TE.add_(update_TE)
    wide_TE = x_TE.float()
    scale_T1 = torch.rsqrt(wide_TE.square().mean(-1, keepdim=True).add_(eps))
    return (wide_TE * scale_T1).to(x_TE.dtype) * weight_E
