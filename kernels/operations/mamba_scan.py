"""The state-space recurrence of Mamba-2.

Shape legend: T tokens, H heads, G groups of heads, V values per head, D state size, X = H V + 2 G D, N = H V, S slots.
Formula: Dao and Gu, "Transformers are SSMs", 2024.
"""

import torch
from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.dispatch import call


def mamba_scan(
    xbc_TX: Tensor,
    time_TH: Tensor,
    decay: StateDecay,
    skip_H: Tensor,
    matrix_SHVD: Tensor,
    rows: StateRows,
    out_TN: Tensor | None = None,
) -> Tensor:
    """Returns matrix C + skip * x of each token and head as [T, N], after matrix = exp(rate * dt) * matrix + dt * x Bᵀ.

    `xbc_TX` holds x of all heads, B of all groups and C of all groups; head h has group h // (H / G). `decay` computes
    the time step dt from `time_TH`. The matrices, `skip_H` and all computation are float32. Rows of `xbc_TX` and of
    `time_TH` may lie apart. Outputs beyond the rows' tokens (the padding of a captured step) are undefined. The result
    may be written to `out_TN`.
    """
    num_tokens, (num_heads, value_size, state_size) = len(xbc_TX), matrix_SHVD.shape[1:]
    num_groups, rest = divmod(xbc_TX.shape[1] - num_heads * value_size, 2 * state_size)
    assert rest == 0
    assert num_groups > 0
    assert num_heads % num_groups == 0
    assert time_TH.shape == (num_tokens, num_heads)
    assert xbc_TX.dtype == time_TH.dtype
    assert xbc_TX.stride(1) == time_TH.stride(1) == 1
    decay.check(num_heads)
    assert skip_H.shape == (num_heads,)
    assert skip_H.dtype == matrix_SHVD.dtype == torch.float32
    assert matrix_SHVD.is_contiguous()
    rows.check(num_tokens)
    out_TN = xbc_TX.new_empty(num_tokens, num_heads * value_size) if out_TN is None else out_TN
    assert out_TN.shape == (num_tokens, num_heads * value_size)
    assert out_TN.dtype == xbc_TX.dtype
    call("mamba_scan", xbc_TX, mamba_scan_reference, xbc_TX, time_TH, decay, skip_H, matrix_SHVD, rows, out_TN)
    return out_TN


def mamba_scan_reference(
    xbc_TX: Tensor,
    time_TH: Tensor,
    decay: StateDecay,
    skip_H: Tensor,
    matrix_SHVD: Tensor,
    rows: StateRows,
    out_TN: Tensor,
) -> None:
    num_heads, value_size, state_size = matrix_SHVD.shape[1:]
    num_values = num_heads * value_size
    x_TN, groups_TX = xbc_TX.float().split((num_values, xbc_TX.shape[1] - num_values), 1)
    x_THV, groups_TGD = x_TN.unflatten(1, (num_heads, value_size)), groups_TX.unflatten(1, (-1, state_size))
    repeats = 2 * num_heads // groups_TGD.shape[1]
    b_THD, c_THD = (part.repeat_interleave(repeats, 1) for part in groups_TGD.chunk(2, 1))
    steps_TH = decay.time_steps(time_TH)
    kept_TH = (decay.rates * steps_TH).exp()

    def advance(matrix_HVD: Tensor, token: int) -> Tensor:
        scaled_HV = steps_TH[token, :, None] * x_THV[token]
        matrix_HVD = matrix_HVD * kept_TH[token, :, None, None] + scaled_HV[:, :, None] * b_THD[token, :, None]
        out_HV = torch.einsum("hvd,hd->hv", matrix_HVD, c_THD[token]) + skip_H[:, None] * x_THV[token]
        out_TN[token] = out_HV.flatten()
        return matrix_HVD

    rows.scan(matrix_SHVD, advance)
