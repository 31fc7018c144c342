"""The gated delta rule in Triton: `state_matrices.py` has its kernels."""

from torch import Tensor

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.gpu.state_matrices import HeadGates, StateForm, compute_states


def gated_delta(
    qkv_TX: Tensor,
    gates_TB: Tensor,
    decay: StateDecay,
    matrix_SHDV: Tensor,
    rows: StateRows,
    has_tiled_heads: bool,
    out_TN: Tensor,
) -> None:
    num_heads, key_size, value_size = matrix_SHDV.shape[1:]
    all_keys = (qkv_TX.shape[1] - num_heads * value_size) // 2
    sizes = num_heads, all_keys // key_size, key_size, value_size
    form = StateForm(*sizes, 0, all_keys, 2 * all_keys, has_delta=True, has_tiled_heads=has_tiled_heads)
    gates = HeadGates(*gates_TB.chunk(2, 1), *decay)
    compute_states(form, qkv_TX, gates, decay.rates, matrix_SHDV, rows, out_TN)
