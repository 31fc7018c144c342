"""Gated DeltaNet: a convolution, a matrix for each head that forgets and corrects itself, and a gated norm.

Shape legend: T tokens, E embedding size, X values that are convolved, H value heads, B = 2 H, V values of a head,
N = H V, K taps.
"""

from torch import Tensor

from kernels.arguments.state_rows import LayerState, StateDecay
from kernels.operations.gated_delta import gated_delta
from kernels.operations.gated_norm import gated_norm
from kernels.operations.short_conv import short_conv
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel, pop_tensor
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription
from scheduler_proc.computing.model.workspace import LayerRows, fit
from scheduler_proc.computing.step.features.states import find_state_rows


class Block:
    def __init__(self, layer: str, delta: GatedDeltaDescription, weights: Weights, context: BlockContext):
        self._delta = delta
        self._in = pop_linear(weights, f"{layer}.delta_in")
        self._gates = pop_linear(weights, f"{layer}.delta_gates")
        self._conv_XK = pop_tensor(weights, f"{layer}.conv.weight")
        rates_H = -pop_tensor(weights, f"{layer}.A_log").exp()
        self._decay = StateDecay(rates_H, pop_tensor(weights, f"{layer}.time_bias"))
        self._norm_V = pop_tensor(weights, f"{layer}.delta_norm.weight")
        self._out = pop_row_parallel(weights, f"{layer}.delta_out", context.parallel)

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, state: LayerState) -> Tensor:
        """Returns the update of the residual stream, [T, E]; reads and stores the states of the rows."""
        rows, room, attended, narrow = layer_rows
        delta, (tail, matrix) = self._delta, state
        size, state_rows = delta.conv_size, find_state_rows(rows.step)
        mixed_TN = self._in(normed_TE, rows, fit(room.inner, size + delta.out_size))
        gates_TB = self._gates(normed_TE, rows, fit(room.heads, 2 * delta.num_value_heads))
        qkv_TX = short_conv(mixed_TN[:, :size], self._conv_XK, None, tail, state_rows, out_TC=fit(room.gated, size))
        values_TN = gated_delta(
            qkv_TX,
            gates_TB,
            self._decay,
            matrix,
            state_rows,
            has_tiled_heads=delta.has_tiled_heads,
            out_TN=fit(attended, delta.out_size),
        )
        gate_TN = mixed_TN[:, size:]
        if narrow is not None:
            values_TN, gate_TN = (part[rows.step.head_tokens] for part in (values_TN, gate_TN))
        out_rows, out_room = narrow or (rows, room)
        gated_TN = gated_norm(values_TN, gate_TN, self._norm_V, delta.norm_eps, delta.value_size, norms_first=True)
        return self._out(gated_TN, out_rows, out_room.update)
