"""Youtu-LLM: the latent attention of DeepSeek V3 with dense MLPs."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import deepseek_v3, latent, llama

DEFAULTS = HfConfig({**deepseek_v3.LATENTS, "tie_word_embeddings": True})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention = latent.describe_attention(hf_config)
    return llama.describe_model(hf_config, [attention] * hf_config.num_layers)


FAMILY = llama.FAMILY.like("YoutuForCausalLM", "youtu", describe, latent.list_sources, defaults=DEFAULTS)
