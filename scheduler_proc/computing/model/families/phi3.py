"""Phi-3, Phi-3.5 and Phi-4 (also mini): Llama with fused weights, and in some models a part of each head rotated."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    MlpDescription,
    ModelDescription,
)
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.family import Source, linear_sources
from scheduler_proc.computing.model.families.rope import ORIGINAL

DEFAULTS = HfConfig({"rms_norm_eps": 1e-5, ORIGINAL: 4096})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    window = llama.fit_window(hf_config.optional_count("sliding_window"), max_model_len)
    attention = replace(llama.describe_attention(hf_config), window=window)
    return llama.describe_model(hf_config, [attention] * hf_config.num_layers)


def list_sources(model: ModelDescription) -> list[Source]:
    return llama.list_sources(model, mlp_sources, attention_sources=_attention_sources)


def mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
    assert isinstance(mlp, DenseMlpDescription)
    return [
        *linear_sources(f"{name}.gate_up_proj", f"{layer}.mlp_in", mlp.in_size, hidden, has_bias=False),
        *linear_sources(f"{name}.down_proj", f"{layer}.mlp_out", hidden, mlp.size, has_bias=False),
    ]


def _attention_sources(name: str, layer: str, attention: AttentionDescription, hidden: int) -> list[Source]:
    return [
        *linear_sources(f"{name}.qkv_proj", f"{layer}.qkv", attention.qkv_size, hidden, has_bias=False),
        *linear_sources(f"{name}.o_proj", f"{layer}.attention_out", hidden, attention.out_size, has_bias=False),
    ]


FAMILY = llama.FAMILY.like("Phi3ForCausalLM", "phi3", describe, list_sources, defaults=DEFAULTS)
