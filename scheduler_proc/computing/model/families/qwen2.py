"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from dataclasses import replace

from scheduler_proc.computing.loading.hf_config import HfConfig
from scheduler_proc.computing.model.decoder_config import DecoderConfig
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.family import Family

WHOLE_CONTEXT = "full_attention"


def read_config(hf_config: HfConfig, max_model_len: int) -> DecoderConfig:
    check_whole_context(hf_config)
    return replace(llama.read_plain_config(hf_config), has_qkv_bias=True)


def check_whole_context(hf_config: HfConfig) -> None:
    """Raises `BootError` for layers with a window; `sliding_window` alone is the size of one that is not used."""
    if hf_config.flag("use_sliding_window", False):
        raise hf_config.refuse("use_sliding_window", True, "sliding-window attention is not supported")
    others = sorted({kind for kind in hf_config.texts("layer_types") if kind != WHOLE_CONTEXT})
    if others:
        raise hf_config.refuse("layer_types", others, f"supported is {WHOLE_CONTEXT}")


FAMILY = Family(
    architectures=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    read_config=read_config,
    list_sources=llama.list_sources,
    prefix=llama.FAMILY.prefix,
    ignored=llama.FAMILY.ignored,
)
