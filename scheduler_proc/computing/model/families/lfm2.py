"""LFM2 and LFM2-MoE: Llama with a norm over each query and key head, and short convolutions in place of most attention.

LFM2-MoE has experts chosen by sigmoids after its first layers.
"""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import MlpDescription, ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama, mamba2
from scheduler_proc.computing.model.families.experts import ExpertNames, sources_with
from scheduler_proc.computing.model.families.family import Source, linear_sources, renamed
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, read_kinds
from scheduler_proc.computing.model.short_conv_description import ShortConvDescription

DEFAULTS = HfConfig({"rope_theta": 1e6, "num_key_value_heads": 8})
CONV = "conv"
NAMES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.norm": "model.embedding_norm",
    "o_proj": "out_proj",
    "q_norm": "q_layernorm",
    "k_norm": "k_layernorm",
    ".mlp.": ".feed_forward.",
    "gate_proj.": "w1.",
    "up_proj.": "w3.",
    "down_proj.": "w2.",
}
"""Parts of names in our lists of sources, and in checkpoints."""


def _read_size(hf_config: HfConfig) -> int:
    """Returns the inner values of an MLP; config.json may have one and a half times as many."""
    size = hf_config.optional_count("block_ff_dim") or hf_config.count("intermediate_size")
    if not hf_config.flag("block_auto_adjust_ff_dim", True):
        return size
    unit, factor = hf_config.count("block_multiple_of", 256), hf_config.number("block_ffn_dim_multiplier", 1.0)
    return -(-int(factor * int(2 * size / 3)) // unit) * unit


def _describe_mlps(hf_config: HfConfig, num_layers: int) -> list[MlpDescription]:
    if hf_config.optional_count("moe_intermediate_size") is None:
        size = HfConfig({"intermediate_size": _read_size(hf_config)})
        return [llama.describe_dense_mlp(hf_config.overridden(size))] * num_layers
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_experts", 32),
        num_chosen=hf_config.count("num_experts_per_tok", 4),
        size=hf_config.count("moe_intermediate_size"),
        is_renormalized=hf_config.flag("norm_topk_prob", True),
        score="sigmoid",
        has_correction=hf_config.flag("use_expert_bias", True),
        scale=hf_config.number("routed_scaling_factor", 1.0),
    )
    num_dense = min(num_layers, hf_config.count("num_dense_layers", 2, least=0))
    return [*[llama.describe_dense_mlp(hf_config)] * num_dense, *[experts] * (num_layers - num_dense)]


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    tied = hf_config.flag("tie_embedding", hf_config.flag("tie_word_embeddings", True))
    hf_config = mamba2.with_eps(DEFAULTS.overridden(hf_config), "norm_eps")
    num_layers = hf_config.num_layers
    attending = hf_config.indices("full_attn_idxs") or range(num_layers)
    kinds = [WHOLE_CONTEXT if index in attending else CONV for index in range(num_layers)]
    kinds = read_kinds(hf_config, kinds, (WHOLE_CONTEXT, CONV))
    attention = llama.describe_attention(hf_config, has_qk_norm=True)
    conv = ShortConvDescription(
        size=hf_config.count("hidden_size"),
        num_taps=hf_config.count("conv_L_cache", 3, most=8, least=2),
        has_bias=hf_config.flag("conv_bias", False),
    )
    mixers = [conv if kind == CONV else attention for kind in kinds]
    model = llama.describe_model(hf_config, mixers, _describe_mlps(hf_config, num_layers))
    return replace(model, has_tied_head=tied)


def list_sources(model: ModelDescription) -> list[Source]:
    sources = llama.list_sources(model, sources_with(ExpertNames(correction="expert_bias")))
    for index, layer in enumerate(model.layers):
        if (conv := layer.find(ShortConvDescription)) is not None:
            sources += _conv_sources(f"model.layers.{index}.conv", f"layers.{index}", conv, model.hidden_size)
    return renamed(sources, NAMES)


def _conv_sources(name: str, layer: str, conv: ShortConvDescription, hidden: int) -> list[Source]:
    size, has_bias = conv.size, conv.has_bias
    return [
        *linear_sources(f"{name}.in_proj", f"{layer}.conv_in", 3 * size, hidden, has_bias),
        *linear_sources(f"{name}.out_proj", f"{layer}.conv_out", hidden, size, has_bias),
        Source(f"{name}.conv.weight", (size, 1, conv.num_taps), f"{layer}.conv.weight"),
        *([Source(f"{name}.conv.bias", (size,), f"{layer}.conv.bias")] if has_bias else ()),
    ]


FAMILY = llama.FAMILY.like("Lfm2ForCausalLM Lfm2MoeForCausalLM", "lfm2 lfm2_moe", describe, list_sources)
