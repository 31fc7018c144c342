"""The forward pass of a decoder-only transformer over the paged KV cache.

Shape legend: T tokens of the step, E embedding size, H query heads, G key/value heads, A = H + 2 G, D head dimension,
N tokens that go to the head, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.repeated_calls import Repeats
from kernels.embed import embed, look_up
from kernels.gelu import GeluKind
from kernels.layer_norm import layer_norm
from kernels.packed_linear import pack_where_faster
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import PrefillRows, paged_prefill
from kernels.qk_norm import HeadNorms
from kernels.rms_norm import rms_norm
from kernels.rotate_store import rotate_store
from kernels.silu_mul import silu_mul
from scheduler_proc.computing.model.decoder_config import DecoderConfig
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.model.linear import Linear, make_linear, make_row_parallel
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
from scheduler_proc.computing.parallel import ALONE, ParallelGroup
from scheduler_proc.computing.step.inputs import StepInputs

MLP_GELUS: dict[str, GeluKind] = {"gelu_tanh": "tanh", "gelu": "exact"}
"""The activations that are part of the MLP's first linear."""


@dataclass(frozen=True)
class Norm:
    """The weight of a norm and, where it is a layer norm, its bias."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Layer:
    attention_norm: Norm
    qkv: Linear
    qk_norms: HeadNorms | None
    attention_out: Linear
    mlp_norm: Norm
    mlp_in: Linear
    mlp_out: Linear


class Decoder:
    """A model with its weights, which it takes out of `weights`; `max_model_len` positions are served.

    A weight of a linear layer, the head included, may be a `QuantizedWeight` or a `PackedWeight`. A tied head is the
    embedding unless there is a "head", and lies as the head reads it. With several ranks, `config` and `weights` are
    this rank's (`sharding.py`).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: dict[str, Any],
        max_model_len: int,
        parallel: ParallelGroup = ALONE,
    ):
        def norm(name: str) -> Norm:
            return Norm(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None))

        def linear(name: str, activation: GeluKind | None = None) -> Linear:
            return make_linear(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None), activation)

        def row_parallel(name: str) -> Linear:
            return make_row_parallel(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None), parallel)

        def qk_norms(name: str) -> HeadNorms | None:
            if not config.has_qk_norm:
                return None
            query_weight, key_weight = (weights.pop(f"{name}.{kind}_norm.weight") for kind in ("query", "key"))
            return HeadNorms(query_weight, key_weight, config.norm_eps)

        self.config = config
        self.parallel = parallel
        embedding = weights.pop("embedding")
        self._embedding_VE = embedding if "head" in weights else pack_where_faster(embedding)
        self._head = make_linear(weights.pop("head", self._embedding_VE), None)
        self._positions_ME = weights.pop("position_embedding", None)
        self._final_norm = norm("final_norm")
        self._layers = [
            Layer(
                attention_norm=norm(f"layers.{index}.attention_norm"),
                qkv=linear(f"layers.{index}.qkv"),
                qk_norms=qk_norms(f"layers.{index}"),
                attention_out=row_parallel(f"layers.{index}.attention_out"),
                mlp_norm=norm(f"layers.{index}.mlp_norm"),
                mlp_in=linear(f"layers.{index}.mlp_in", MLP_GELUS.get(config.activation)),
                mlp_out=row_parallel(f"layers.{index}.mlp_out"),
            )
            for index in range(config.num_layers)
        ]
        self._rope_tables: tuple[Tensor, Tensor] | None = None
        if config.rope is not None:
            device = self._final_norm.weight.device
            self._rope_tables = make_rope_tables(config.rope, config.head_dim, max_model_len, device)

    @property
    def activation_dtype(self) -> torch.dtype:
        return self._final_norm.weight.dtype

    def forward(
        self, step: StepInputs, cache: KVTensors, room: Activations = NEW_MEMORY, repeats: Repeats | None = None
    ) -> Tensor:
        """Returns what the head reads of `step.head_tokens` [N, E]; the cache then holds all tokens' K and V.

        What operations return, the result included, may be put into `room`. Where there is room for all, the layers
        between the second and the last may be computed by `repeats`.
        """
        residual_TE = self._embed(step, room.residual)
        update_TE = None
        # One for all layers: what a layer's attention leaves here is read before the next layer's is written.
        attended_THD = room.attended
        if attended_THD is None:
            heads = residual_TE.shape[0], self.config.num_heads, self.config.head_dim
            attended_THD = torch.empty(heads, dtype=residual_TE.dtype, device=residual_TE.device)
        last = len(self._layers) - 1

        def compute(index: int) -> None:
            nonlocal residual_TE, update_TE, room
            layer = self._layers[index]
            heads_TA = layer.qkv(self._norm(layer.attention_norm, residual_TE, update_TE, room), room.heads)
            # No token attends to what follows the last layer's K and V: only those whose logits are wanted go on.
            is_narrow = index == last and not step.all_go_to_head
            attended_TA = self._attend(index, heads_TA, step, cache, attended_THD, is_narrow)
            if is_narrow:
                residual_TE, room = residual_TE[step.head_tokens], room.take(len(step.head_tokens))
            update_TE = layer.attention_out(attended_TA, room.update)
            inner_TF = layer.mlp_in(self._norm(layer.mlp_norm, residual_TE, update_TE, room), room.inner)
            if self.config.activation == "silu_gated":
                inner_TF = silu_mul(inner_TF, room.gated)
            update_TE = layer.mlp_out(inner_TF, room.update)

        middle = range(1, last)
        if repeats is None or len(middle) < 2:
            for index in range(last + 1):
                compute(index)
        else:
            compute(0)
            repeats.compute(compute, middle)
            compute(last)
        return self._norm(self._final_norm, residual_TE, update_TE, room)

    def logits(self, hidden_NE: Tensor, out_NV: Tensor | None = None) -> Tensor:
        """Returns the logits [N, V] of what `forward` returned, or of a part of it, maybe in `out_NV`."""
        if self.parallel.size == 1:
            return self._head(hidden_NE, out_NV)
        return self.parallel.gather_columns(self._head(hidden_NE), self.config.vocab_size)

    def _embed(self, step: StepInputs, out_TE: Tensor | None) -> Tensor:
        """Returns the embeddings of the step's tokens, maybe in `out_TE`. Of several ranks, each has some of them."""
        table_VE, position_table_ME = self._embedding_VE, self._positions_ME
        if self.parallel.size == 1:
            return embed(step.token_ids, step.positions, table_VE, position_table_ME, out_TE)
        num_rows = self.config.vocab_part
        rows_T = step.token_ids - self.parallel.rank * num_rows
        is_elsewhere_T = (rows_T < 0) | (rows_T >= num_rows)
        part_TE = look_up(rows_T.masked_fill(is_elsewhere_T, 0), table_VE)
        embedded_TE = self.parallel.all_reduce(part_TE.masked_fill_(is_elsewhere_T[:, None], 0))
        if position_table_ME is not None:
            embedded_TE += functional.embedding(step.positions, position_table_ME)
        return embedded_TE

    def _norm(self, norm: Norm, residual_TE: Tensor, update_TE: Tensor | None, room: Activations) -> Tensor:
        """Adds the update to the residual stream and returns the norm of it."""
        if norm.bias is None:
            return rms_norm(residual_TE, norm.weight, self.config.norm_eps, update_TE, room.normed)
        return layer_norm(residual_TE, norm.weight, norm.bias, self.config.norm_eps, update_TE, room.normed)

    def _attend(
        self, index: int, heads_TA: Tensor, step: StepInputs, cache: KVTensors, out_THD: Tensor, is_narrow: bool
    ) -> Tensor:
        """Stores the tokens' K and V in layer `index` of the cache; returns their attention's output, [T, H * D].

        Where `is_narrow`, it is that of `step.head_tokens`. `out_THD` is written, and what is returned may be a view of
        it. `heads_TA` holds all heads of each token, [T, A * D].
        """
        config, num_decode = self.config, step.num_decode_rows
        num_tokens, layer = heads_TA.shape[0], self._layers[index]
        heads_TAD = heads_TA.view(num_tokens, -1, config.head_dim)
        layer_cache = cache.layers[index]
        query_THD = rotate_store(heads_TAD, layer_cache, self._rope_tables, step.positions, step.slots, layer.qk_norms)
        if step.attend is not None:
            step.attend(query_THD, layer_cache, out_THD)
            return _select(out_THD, step.head_tokens if is_narrow else None)
        rows = PrefillRows(
            step.prefill_page_tables, step.prefill_query_lens, step.prefill_context_lens, step.prefill_tiles
        )
        wanted = step.head_tokens if is_narrow else None
        if is_narrow and step.head_rows is not None:
            query_THD, rows, wanted = query_THD[step.head_tokens], step.head_rows, None
            num_tokens = len(query_THD)
            out_THD = out_THD[:num_tokens]
        if num_decode:
            has_others = num_decode < num_tokens
            paged_decode(
                query_THD[:num_decode] if has_others else query_THD,
                layer_cache,
                step.decode_page_tables,
                step.decode_num_keys,
                config.attention_scale,
                out_THD[:num_decode] if has_others else out_THD,
                step.decode_work,
            )
        if num_decode < num_tokens:
            paged_prefill(query_THD[num_decode:], layer_cache, rows, config.attention_scale, out_THD[num_decode:])
        return _select(out_THD, wanted)


def _select(attended_THD: Tensor, tokens: Tensor | None) -> Tensor:
    """Returns the output of these tokens, all where there are none given, [T, H * D]."""
    found_THD = attended_THD if tokens is None else attended_THD[tokens]
    return found_THD.view(len(found_THD), found_THD.shape[1] * found_THD.shape[2])
