"""A Mamba-2 block: see `MambaDescription`.

Shape legend: T tokens, E embedding size, X values of a projection, N values of all heads, H heads, V values per head,
D state size, C channels, K taps, J = K - 1, S slots.
"""

from torch import Tensor

from kernels.arguments.state_rows import LayerState, StateDecay
from kernels.operations.gated_norm import gated_norm
from kernels.operations.mamba_scan import mamba_scan
from kernels.operations.short_conv import short_conv
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel, pop_tensor
from scheduler_proc.computing.model.mamba_description import VECTORS, MambaDescription
from scheduler_proc.computing.model.workspace import LayerRows, fit
from scheduler_proc.computing.step.features.states import find_state_rows


class Block:
    def __init__(self, layer: str, mamba: MambaDescription, weights: Weights, context: BlockContext):
        self._mamba = mamba
        self._linear_in = pop_linear(weights, f"{layer}.mamba_in")
        self._linear_out = pop_row_parallel(weights, f"{layer}.mamba_out", context.parallel)
        self._conv_CK = pop_tensor(weights, f"{layer}.conv.weight")
        self._conv_bias_C = pop_tensor(weights, f"{layer}.conv.bias") if mamba.has_conv_bias else None
        self._norm_N = pop_tensor(weights, f"{layer}.mamba_norm.weight") if mamba.has_norm else None
        rate_log_H, self._skip_H, biases_H = (pop_tensor(weights, f"{layer}.mamba_{name}") for name in VECTORS)
        self._decay = StateDecay(-rate_log_H.exp(), biases_H, *mamba.time_limits)

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, state: LayerState) -> Tensor:
        """Returns the update of the residual stream, [T, E]; stores the states after the tokens with slots."""
        rows, room, attended, narrow = layer_rows
        mamba, state_rows = self._mamba, find_state_rows(rows.step)
        tail_SJC, matrix_SHVD = state
        projected_TX = self._linear_in(normed_TE, rows, fit(room.heads, mamba.in_size))
        ends = mamba.out_size, mamba.out_size + mamba.conv_size
        gate_TN, xbc_TC, time_TH = projected_TX[:, : ends[0]], projected_TX[:, slice(*ends)], projected_TX[:, ends[1] :]
        out_TC = fit(room.inner, mamba.conv_size)
        xbc_TC = short_conv(xbc_TC, self._conv_CK, self._conv_bias_C, tail_SJC, state_rows, out_TC=out_TC)
        out_TN = fit(attended, mamba.out_size)
        values_TN = mamba_scan(xbc_TC, time_TH, self._decay, self._skip_H, matrix_SHVD, state_rows, out_TN)
        if narrow is not None:
            values_TN, gate_TN = values_TN[rows.step.head_tokens], gate_TN[rows.step.head_tokens]
        group_size = mamba.out_size // mamba.num_groups
        gated_norm(values_TN, gate_TN, self._norm_N, mamba.norm_eps, group_size, norms_first=mamba.norms_first)
        out_rows, out_room = narrow or (rows, room)
        return self._linear_out(values_TN, out_rows, out_room.update)
