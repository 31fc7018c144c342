"""The forward pass of a decoder-only transformer over the paged KV cache.

Shape legend: T tokens of the step, E embedding size, H query heads, G key/value heads, A = H + 2 G, D head dimension,
N tokens that go to the head, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.embed import embed
from kernels.gelu import GeluKind
from kernels.layer_norm import layer_norm
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import PrefillRows, paged_prefill
from kernels.qk_norm import HeadNorms
from kernels.rms_norm import rms_norm
from kernels.rotate_store import rotate_store
from kernels.silu_mul import silu_mul
from scheduler_proc.computing.model.decoder_config import DecoderConfig
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.model.linear import Linear, make_linear
from scheduler_proc.computing.model.rope_tables import make_rope_tables
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
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
    embedding unless there is a "head".
    """

    def __init__(self, config: DecoderConfig, weights: dict[str, Any], max_model_len: int):
        def norm(name: str) -> Norm:
            return Norm(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None))

        def linear(name: str, activation: GeluKind | None = None) -> Linear:
            return make_linear(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None), activation)

        def qk_norms(name: str) -> HeadNorms | None:
            if not config.has_qk_norm:
                return None
            query_weight, key_weight = (weights.pop(f"{name}.{kind}_norm.weight") for kind in ("query", "key"))
            return HeadNorms(query_weight, key_weight, config.norm_eps)

        self.config = config
        self._embedding_VE = weights.pop("embedding")
        self._head = make_linear(weights.pop("head", self._embedding_VE), None)
        self._positions_ME = weights.pop("position_embedding", None)
        self._final_norm = norm("final_norm")
        self._layers = [
            Layer(
                attention_norm=norm(f"layers.{index}.attention_norm"),
                qkv=linear(f"layers.{index}.qkv"),
                qk_norms=qk_norms(f"layers.{index}"),
                attention_out=linear(f"layers.{index}.attention_out"),
                mlp_norm=norm(f"layers.{index}.mlp_norm"),
                mlp_in=linear(f"layers.{index}.mlp_in", MLP_GELUS.get(config.activation)),
                mlp_out=linear(f"layers.{index}.mlp_out"),
            )
            for index in range(config.num_layers)
        ]
        self._rope_tables: tuple[Tensor, Tensor] | None = None
        if config.rope is not None:
            device = self._embedding_VE.device
            self._rope_tables = make_rope_tables(config.rope, config.head_dim, max_model_len, device)

    @property
    def activation_dtype(self) -> torch.dtype:
        return self._embedding_VE.dtype

    def forward(self, step: StepInputs, cache: KVTensors, room: Activations = NEW_MEMORY) -> Tensor:
        """Returns what the head reads of `step.head_tokens` [N, E]; the cache then holds all tokens' K and V.

        What operations return, the result included, may be put into `room`.
        """
        residual_TE = embed(step.token_ids, step.positions, self._embedding_VE, self._positions_ME, room.residual)
        update_TE = None
        # One for all layers: what a layer's attention leaves here is read before the next layer's is written.
        attended_THD = room.attended
        if attended_THD is None:
            heads = residual_TE.shape[0], self.config.num_heads, self.config.head_dim
            attended_THD = torch.empty(heads, dtype=residual_TE.dtype, device=residual_TE.device)
        for index, layer in enumerate(self._layers):
            normed_TE = self._norm(layer.attention_norm, residual_TE, update_TE, room)
            heads_TA = layer.qkv(normed_TE, room.heads)
            update_TE = layer.attention_out(self._attend(index, heads_TA, step, cache, attended_THD), room.update)
            if index == len(self._layers) - 1 and not step.all_go_to_head:
                # No token attends to what follows, so only those whose logits are wanted go on.
                update_TE, residual_TE = update_TE[step.head_tokens], residual_TE[step.head_tokens]
                room = room.take(len(update_TE))
            normed_TE = self._norm(layer.mlp_norm, residual_TE, update_TE, room)
            update_TE = self._mlp(layer, normed_TE, room)
        return self._norm(self._final_norm, residual_TE, update_TE, room)

    def logits(self, hidden_NE: Tensor, out_NV: Tensor | None = None) -> Tensor:
        """Returns the logits [N, V] of what `forward` returned, or of a part of it, maybe in `out_NV`."""
        return self._head(hidden_NE, out_NV)

    def _norm(self, norm: Norm, residual_TE: Tensor, update_TE: Tensor | None, room: Activations) -> Tensor:
        """Adds the update to the residual stream and returns the norm of it."""
        if norm.bias is None:
            return rms_norm(residual_TE, norm.weight, self.config.norm_eps, update_TE, room.normed)
        return layer_norm(residual_TE, norm.weight, norm.bias, self.config.norm_eps, update_TE, room.normed)

    def _attend(self, index: int, heads_TA: Tensor, step: StepInputs, cache: KVTensors, out_THD: Tensor) -> Tensor:
        """Stores the tokens' K and V in layer `index` of the cache; returns their attention's output, [T, H * D].

        That is a view of `out_THD`, which is written. `heads_TA` holds all heads of each token, [T, A * D].
        """
        config, num_decode = self.config, step.num_decode_rows
        num_tokens, layer = heads_TA.shape[0], self._layers[index]
        heads_TAD = heads_TA.view(num_tokens, -1, config.head_dim)
        layer_cache = cache.layers[index]
        query_THD = rotate_store(heads_TAD, layer_cache, self._rope_tables, step.positions, step.slots, layer.qk_norms)
        if step.attend is not None:
            step.attend(query_THD, layer_cache, out_THD)
            return out_THD.view(num_tokens, -1)
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
            paged_prefill(
                query_THD[num_decode:],
                layer_cache,
                PrefillRows(
                    step.prefill_page_tables, step.prefill_query_lens, step.prefill_context_lens, step.prefill_tiles
                ),
                config.attention_scale,
                out_THD[num_decode:],
            )
        return out_THD.view(num_tokens, -1)

    def _mlp(self, layer: Layer, normed_TE: Tensor, room: Activations) -> Tensor:
        inner = layer.mlp_in(normed_TE, room.inner)
        if self.config.activation == "silu_gated":
            inner = silu_mul(inner, room.gated)
        return layer.mlp_out(inner, room.update)
