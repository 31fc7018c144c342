"""Attention of an encoder: over the K and V of the step's own tokens, in both directions.

Shape legend: T tokens of the step, H query heads, G key/value heads, A = H + 2 G, D head dimension.
"""

from torch import Tensor

from kernels.arguments.paged_kv import InPlace
from kernels.arguments.rows import WholeRows
from kernels.operations.encoder_attention import encoder_attention
from kernels.operations.rotate_store import rotate_store
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.blocks import attention
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.step.inputs import StepInputs


class Block(attention.Block):
    def __init__(self, layer: str, description: EncoderAttentionDescription, weights: Weights, context: BlockContext):
        super().__init__(layer, description, weights, context)
        self._num_kv_heads = description.num_kv_heads

    def _attend(
        self, heads_TAD: Tensor, step: StepInputs, memory: None, attended: Tensor, *, is_narrow: bool
    ) -> Tensor:
        num_kv_heads, tables, norms = self._num_kv_heads, self._rope_tables, self._head_norms
        if tables is not None or norms is not None:
            rotate_store(heads_TAD, InPlace(num_kv_heads), tables, step.positions, step.slots, norms)
        query_THD, key_TGD, value_TGD = heads_TAD.tensor_split((-2 * num_kv_heads, -num_kv_heads), 1)
        rows = WholeRows(step.num_decode_rows, step.prefill_query_lens)
        out_THD = attention.room_like(query_THD, attended)
        encoder_attention(query_THD, key_TGD, value_TGD, rows, self._options, out_THD)
        return attention.select_tokens(out_THD, step.head_tokens if is_narrow else None)
