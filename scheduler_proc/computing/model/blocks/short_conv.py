"""A gated short convolution: see `ShortConvDescription`.

Shape legend: T tokens, E embedding size, C channels, X = 3 C.
"""

from torch import Tensor

from kernels.arguments.state_rows import LayerState
from kernels.operations.short_conv import short_conv
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear, pop_row_parallel, pop_tensor
from scheduler_proc.computing.model.short_conv_description import ShortConvDescription
from scheduler_proc.computing.model.workspace import LayerRows, fit
from scheduler_proc.computing.step.features.states import find_state_rows


class Block:
    def __init__(self, layer: str, conv: ShortConvDescription, weights: Weights, context: BlockContext):
        self._size = conv.size
        self._linear_in = pop_linear(weights, f"{layer}.conv_in")
        self._linear_out = pop_row_parallel(weights, f"{layer}.conv_out", context.parallel)
        self._weight_CK = pop_tensor(weights, f"{layer}.conv.weight")
        self._bias_C = pop_tensor(weights, f"{layer}.conv.bias") if conv.has_bias else None

    def __call__(self, normed_TE: Tensor, layer_rows: LayerRows, state: LayerState) -> Tensor:
        """See `mamba.Block`."""
        rows, room, attended, narrow = layer_rows
        (tail_SJC,), state_rows = state, find_state_rows(rows.step)
        input_TX = self._linear_in(normed_TE, rows, fit(room.heads, 3 * self._size))
        out_TC = fit(attended, self._size)
        out_TC = short_conv(input_TX, self._weight_CK, self._bias_C, tail_SJC, state_rows, is_gated=True, out_TC=out_TC)
        if narrow is not None:
            out_TC = out_TC[rows.step.head_tokens]
        out_rows, out_room = narrow or (rows, room)
        return self._linear_out(out_TC, out_rows, out_room.update)
