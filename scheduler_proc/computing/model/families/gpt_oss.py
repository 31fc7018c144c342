"""gpt-oss: attention sinks, windows in each second layer, biases everywhere, and experts with a clamped gate."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.experts import ExpertNames, FusedExperts, sources_with
from scheduler_proc.computing.model.families.family import Source
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, describe_kinds

DEFAULTS = HfConfig({"head_dim": 64, "rope_theta": 150_000.0, "rms_norm_eps": 1e-5, "sliding_window": 128})
"""The values of fields that config.json may lack."""

NAMES = ExpertNames(router="router", fused=FusedExperts(is_interleaved=True, is_transposed=True))


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.choice("hidden_act", ["silu"], "silu")
    experts = ExpertMlpDescription(
        num_experts=hf_config.count("num_local_experts"),
        num_chosen=hf_config.count("num_experts_per_tok"),
        size=hf_config.count("intermediate_size"),
        is_renormalized=True,
        activation="swiglu_oai",
        swiglu_alpha=hf_config.number("swiglu_alpha", 1.702),
        swiglu_limit=hf_config.number("swiglu_limit", 7.0),
        has_bias=True,
    )
    attention = llama.describe_attention(hf_config, has_bias=hf_config.flag("attention_bias", True))
    attention, rope = replace(attention, has_sinks=True), attention.rope
    layers = describe_kinds(hf_config, attention, max_model_len, 2, {WHOLE_CONTEXT: rope, WINDOW: rope})
    return llama.describe_model(hf_config, layers, [experts] * len(layers))


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, sources_with(NAMES), attention_sources=_attention_sources)


def _attention_sources(name: str, layer: str, attention: AttentionDescription, hidden: int) -> list[Source]:
    sinks = Source(f"{name}.sinks", (attention.num_heads,), f"{layer}.sinks", others=(f"{name}.sinks.weight",))
    return [*llama.attention_sources(name, layer, attention, hidden), sinks]


FAMILY = llama.FAMILY.like("GptOssForCausalLM", "gpt_oss", describe, list_sources, defaults=DEFAULTS)
