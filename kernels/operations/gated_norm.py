"""The gate on the output of a recurrent layer, with root-mean-square normalization of groups before or after it.

Shape legend: T tokens, N values, W = N or the values of a group.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import call


def gated_norm(
    values_TN: Tensor, gate_TN: Tensor, weight_W: Tensor | None, eps: float, group_size: int, *, norms_first: bool
) -> Tensor:
    """Normalizes and gates each group of `group_size` values in place, in float32, rounded once; returns them.

    With `norms_first` (Gated DeltaNet) the result is norm(values) * weight * silu(gate), else (Mamba-2)
    norm(values * silu(gate)) * weight. A weight of one group's size serves all groups; without a weight (Falcon-H1)
    the result is values * silu(gate). Rows of either may lie apart.
    """
    assert values_TN.shape == gate_TN.shape
    assert values_TN.shape[1] % group_size == 0
    assert weight_W is None or weight_W.shape in ((group_size,), values_TN.shape[1:])
    assert values_TN.dtype == gate_TN.dtype
    assert weight_W is None or weight_W.dtype == values_TN.dtype
    assert values_TN.stride(1) == gate_TN.stride(1) == 1
    call("gated_norm", values_TN, gated_norm_reference, values_TN, gate_TN, weight_W, eps, group_size, norms_first)
    return values_TN


def gated_norm_reference(
    values_TN: Tensor, gate_TN: Tensor, weight_W: Tensor | None, eps: float, group_size: int, norms_first: bool
) -> None:
    gate_TN, wide_TN = functional.silu(gate_TN.float()), values_TN.float()
    if weight_W is None:
        values_TN.copy_(wide_TN * gate_TN)
        return
    groups = (wide_TN if norms_first else wide_TN * gate_TN).unflatten(1, (-1, group_size))
    groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True).add_(eps))
    result_TN = (groups * weight_W.float().view(-1, group_size)).flatten(1)
    values_TN.copy_(result_TN * gate_TN if norms_first else result_TN)
