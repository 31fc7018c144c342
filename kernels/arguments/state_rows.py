"""The recurrent states that the rows of a step read and store.

A state is the whole recurrent state of one sequence after one of its tokens. Its slot has the same number in all
layers. A row reads the state before its first token from one slot, and may store the state after each of its tokens
into a slot. No state is ever copied otherwise.

Shape legend: T tokens, B decode rows, C prefill rows, S slots.
"""

from dataclasses import dataclass

from torch import Tensor

LayerState = tuple[Tensor, ...]
"""The parts of a layer's states, each [S, …], in the order of the layer's description."""


@dataclass(frozen=True)
class StateRows:
    """The first B tokens are those of the decode rows, one each; the tokens of prefill rows follow one after another.

    Tokens after those of the last prefill row are padding. On a CPU, a decode row may read the slot that an earlier
    one has just stored: rows are computed in order. On a GPU they are independent of each other.
    """

    num_decode_rows: int
    decode_sources: Tensor
    """int32 [B]: the slot with the state before the row's token, -1: no token is before it, its state is zero."""
    prefill_sources: Tensor
    """int32 [C]: the same for the first token of each prefill row."""
    prefill_lens: Tensor
    """int32 [C]: the tokens of each prefill row; 0 for the padding of a step of fixed shape."""
    slots: Tensor
    """int32 [T]: the slot that takes the state after each token, -1: it is not stored."""
