"""Gemma 4, models of text and the language models of others: layers of two kinds, with other heads in each kind.

The last layers of small models read the K and V of earlier ones, and layers have inputs of their own.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    MlpDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.expert_description import DenseAndExpertsDescription, ExpertMlpDescription
from scheduler_proc.computing.model.families import gemma2, llama
from scheduler_proc.computing.model.families.experts import ExpertNames, expert_sources
from scheduler_proc.computing.model.families.family import Source, linear_sources
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, read_kinds, read_ropes

PERIOD = 6
SIDE_NORMS = {
    "pre_feedforward_layernorm": "dense_norm",
    "post_feedforward_layernorm_1": "dense_out_norm",
    "pre_feedforward_layernorm_2": "experts_norm",
    "post_feedforward_layernorm_2": "experts_out_norm",
}
"""The norms of a dense MLP and of experts by their names in a checkpoint."""

EXPERTS = ExpertNames(router="router.proj")
DEFAULTS = HfConfig(
    {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_144,
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "rope_parameters": {
            WINDOW: {"rope_theta": 10_000.0},
            WHOLE_CONTEXT: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
    }
)
"""The values of fields that config.json may lack."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    if hf_config.text("use_bidirectional_attention", "vision") != "vision":
        raise hf_config.refuse("use_bidirectional_attention", "all", "tokens cannot attend to later ones")
    hf_config.choice("hidden_activation", [gemma2.ACTIVATION], gemma2.ACTIVATION)
    attentions = _describe_attentions(hf_config, max_model_len)
    norm = llama.describe_norm(hf_config, hf_config.count("hidden_size"))
    mlps = [_describe_mlp(hf_config, norm, is_last=attention.kv_layer is not None) for attention in attentions]
    norms = dict(gemma2.NORMS)
    if hf_config.flag("enable_moe_block", False):
        del norms["pre_feedforward_layernorm"]
    model = llama.describe_model(hf_config, attentions, mlps, norm, norms)
    input_size = hf_config.count("hidden_size_per_layer_input", 256, least=0)
    if input_size:
        hf_config.choice("vocab_size_per_layer_input", [model.vocab_size], 262_144)
    inputs = {"input_size": input_size, "input_norm": norm} if input_size else {}
    return replace(
        model,
        layers=tuple(replace(layer, has_scale=True, **inputs) for layer in model.layers),
        layer_input_norm=replace(norm, size=input_size) if input_size else None,
        embedding_scale=norm.size**0.5,
        rounds_embedding_scale=True,
        logit_softcap=hf_config.optional_number("final_logit_softcapping"),
        padding_id=hf_config.count("pad_token_id", 0, most=model.vocab_size - 1, least=0),
    )


def _describe_mlp(hf_config: HfConfig, norm: NormDescription, *, is_last: bool) -> MlpDescription:
    """`is_last`: the layer is one of those that read the K and V of others."""
    num_parts = 2 if is_last and hf_config.flag("use_double_wide_mlp", False) else 1
    dense = DenseMlpDescription(size=num_parts * hf_config.count("intermediate_size"), activation="gelu_tanh_gated")
    if not hf_config.flag("enable_moe_block", False):
        return dense
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_experts"),
        num_chosen=hf_config.count("top_k_experts"),
        size=hf_config.count("moe_intermediate_size"),
        is_renormalized=True,
        activation="gelu_tanh_gated",
        has_scales=True,
    )
    return DenseAndExpertsDescription(dense=dense, experts=experts, norm=norm)


def _describe_attentions(hf_config: HfConfig, max_model_len: int) -> list[AttentionDescription]:
    num_layers = hf_config.count("num_hidden_layers", 30, most=MAX_LAYERS)
    default = [WHOLE_CONTEXT if index % PERIOD == 0 else WINDOW for index in range(1, num_layers + 1)]
    kinds = [*read_kinds(hf_config, default)[:-1], WHOLE_CONTEXT]  # the last one in any case, as in transformers
    ropes, has_bias = read_ropes(hf_config), hf_config.flag("attention_bias", False)
    attention = llama.describe_attention(hf_config, has_bias=has_bias, has_qk_norm=True)
    attention = replace(attention, scale=1.0, norms_values=True)
    window = llama.fit_window(hf_config.count("sliding_window"), max_model_len)
    sees_spans = hf_config.text("use_bidirectional_attention", "") == "vision"
    of_kind = {
        WINDOW: replace(attention, rope=ropes[WINDOW], window=window, sees_spans=sees_spans),
        WHOLE_CONTEXT: replace(
            attention, rope=ropes[WHOLE_CONTEXT], shares_kv_weight=hf_config.flag("attention_k_eq_v", False)
        ),
    }
    heads = _read_heads(hf_config, kinds)
    attentions = [_with_heads(of_kind[kind], *each) for kind, each in zip(kinds, heads, strict=True)]
    return _share_kv(hf_config, attentions, kinds)


def _with_heads(attention: AttentionDescription, num_kv_heads: int, head_dim: int) -> AttentionDescription:
    norm = attention.qk_norm and replace(attention.qk_norm, size=head_dim)
    return replace(attention, num_kv_heads=num_kv_heads, head_dim=head_dim, qk_norm=norm)


def _read_heads(hf_config: HfConfig, kinds: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the key/value heads and the values per head of each layer: `per_layer_config` or, of old, by kind."""
    local = hf_config.count("num_key_value_heads"), hf_config.count("head_dim")
    num_kv_heads = hf_config.optional_count("num_global_key_value_heads")
    if num_kv_heads is None or not hf_config.flag("attention_k_eq_v", False):
        num_kv_heads = local[0]
    whole = num_kv_heads, hf_config.count("global_head_dim", 512)
    of_layers = hf_config.section("per_layer_config")
    if of_layers is None:
        return [whole if kind == WHOLE_CONTEXT else local for kind in kinds]
    # Transformers writes the numbers of layers with as many digits as the last one has.
    own = {name.lstrip("0") or "0": layer for name, layer in of_layers.sections().items()}
    layers = [own.get(str(index), HfConfig({})) for index, _ in enumerate(kinds)]
    return [(layer.count("num_key_value_heads", local[0]), layer.count("head_dim", local[1])) for layer in layers]


def _share_kv(
    hf_config: HfConfig, attentions: list[AttentionDescription], kinds: list[str]
) -> list[AttentionDescription]:
    """Makes each of the last layers read the K and V of the last layer of its kind before them."""
    name = "num_kv_shared_layers"
    num_shared = hf_config.count(name, 0, least=0)
    first = len(kinds) - num_shared
    sources = {kind: index for index, kind in enumerate(kinds[: max(first, 0)])}
    for index in range(max(first, 0), len(kinds)):
        source = sources.get(kinds[index])
        if source is None or attentions[source].heads != attentions[index].heads:
            raise hf_config.refuse(name, num_shared, f"no layer before has K and V for layer {index}")
        attentions[index] = replace(attentions[index], kv_layer=source)
    return attentions


def list_sources(model: ModelDescription) -> list[Source]:
    has_experts = isinstance(model.layers[0].mlp, DenseAndExpertsDescription)
    norms = {**gemma2.NORMS, **(SIDE_NORMS if has_experts else {})}
    sources = llama.list_sources(model, _mlp_sources, norms, _attention_sources)
    for index, layer in enumerate(model.layers):
        sources += _layer_sources(f"model.layers.{index}", f"layers.{index}", layer, model.hidden_size)
    if (norm := model.layer_input_norm) is not None:
        size, hidden = model.layer_inputs_size, model.hidden_size
        name = "model.per_layer_model_projection"
        sources += linear_sources(name, "layer_projection", size, hidden, has_bias=False)
        sources += [
            Source("model.embed_tokens_per_layer.weight", (model.vocab_size, size), "layer_inputs"),
            Source("model.per_layer_projection_norm.weight", (norm.size,), "layer_input_norm.weight"),
        ]
    return sources


def _layer_sources(block: str, name: str, layer: LayerDescription, hidden: int) -> list[Source]:
    sources = [Source(f"{block}.layer_scalar", (1,), f"{name}.scale")]
    if size := layer.input_size:
        gate, out = f"{block}.per_layer_input_gate", f"{block}.per_layer_projection"
        sources += linear_sources(gate, f"{name}.input_gate", size, hidden, has_bias=False)
        sources += linear_sources(out, f"{name}.input_out", hidden, size, has_bias=False)
        sources.append(Source(f"{block}.post_per_layer_input_norm.weight", (hidden,), f"{name}.input_norm.weight"))
    return sources


def _mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    if not isinstance(mlp, DenseAndExpertsDescription):
        return llama.dense_mlp_sources(name, layer, mlp, hidden)
    block = name.removesuffix(".mlp")
    return [
        *llama.dense_mlp_sources(name, layer, mlp.dense, hidden),
        *expert_sources(block, layer, mlp.experts, hidden, EXPERTS),
        Source(f"{block}.router.scale", (hidden,), f"{layer}.router_norm.weight"),
        Source(f"{block}.router.per_expert_scale", (mlp.experts.num_experts,), f"{layer}.router.scales"),
    ]


def _attention_sources(name: str, layer: str, attention: AttentionDescription, hidden: int) -> list[Source]:
    sources = llama.attention_sources(name, layer, attention, hidden)
    if attention.kv_layer is not None:
        own = ("q_proj", "q_norm", "o_proj")
        return [source for source in sources if source.name.split(".")[-2] in own]
    if attention.shares_kv_weight:
        return [replace(source, name=source.name.replace(".v_proj.", ".k_proj.")) for source in sources]
    return sources


SHARED = r"(model\.)?layers\.\d+\.self_attn\.([kv]_proj|[kv]_norm)\..*"
"""Layers that read other layers' K and V may have weights of their own in a checkpoint."""

FAMILY = llama.FAMILY.like(
    "Gemma4ForCausalLM",
    "gemma4_text",
    describe,
    list_sources,
    DEFAULTS,
    ignored=re.compile(f"{SHARED}|lm_head\\.weight"),
)
