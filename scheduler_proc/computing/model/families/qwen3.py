"""Qwen3, the dense models: Llama with a norm over each query and key head, and heads of a size of their own."""

from dataclasses import replace

from scheduler_proc.computing.loading.hf_config import HfConfig
from scheduler_proc.computing.model.decoder_config import DecoderConfig
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.family import Family, Source
from scheduler_proc.computing.model.families.qwen2 import check_whole_context

DEFAULT_HEAD_DIM = 128


def read_config(hf_config: HfConfig, max_model_len: int) -> DecoderConfig:
    check_whole_context(hf_config)
    has_bias = hf_config.flag("attention_bias", False)
    plain = llama.read_plain_config(hf_config, DEFAULT_HEAD_DIM)
    return replace(plain, has_qk_norm=True, has_qkv_bias=has_bias, has_attention_out_bias=has_bias)


def list_sources(config: DecoderConfig) -> list[Source]:
    norms = [
        Source(f"model.layers.{index}.self_attn.{name}.weight", (config.head_dim,), f"layers.{index}.{target}.weight")
        for index in range(config.num_layers)
        for name, target in (("q_norm", "query_norm"), ("k_norm", "key_norm"))
    ]
    return llama.list_sources(config) + norms


FAMILY = Family(
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    read_config=read_config,
    list_sources=list_sources,
    prefix=llama.FAMILY.prefix,
    ignored=llama.FAMILY.ignored,
)
