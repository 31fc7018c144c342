"""The recurrence of Mamba-2 in Triton: `state_matrices.py` has its kernels."""

from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.gpu.state_matrices import HeadGates, StateForm, compute_states


def mamba_scan(
    xbc_TX: Tensor,
    time_TH: Tensor,
    decay: StateDecay,
    skip_H: Tensor,
    matrix_SHVD: Tensor,
    rows: StateRows,
    out_TN: Tensor,
) -> None:
    num_heads, value_size, state_size = matrix_SHVD.shape[1:]
    all_values = num_heads * value_size
    all_keys = (xbc_TX.shape[1] - all_values) // 2
    sizes = num_heads, all_keys // state_size, state_size, value_size
    form = StateForm(*sizes, all_values + all_keys, all_values, 0, has_delta=False)
    gates = HeadGates(time_TH, time_TH, *decay)
    compute_states(form, xbc_TX, gates, skip_H, matrix_SHVD, rows, out_TN)
