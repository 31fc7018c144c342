"""Qwen3.5 and Qwen3.6, the dense models: Qwen3-Next without experts, under other names of tensors."""

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, qwen3_next
from scheduler_proc.computing.model.families.rope import with_axes

SECTIONS = 11, 11, 10
"""The sections of positions with three axes, by default."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    model = qwen3_next.describe_hybrid(hf_config, [llama.describe_dense_mlp(hf_config)] * hf_config.num_layers)
    return with_axes(model, hf_config, SECTIONS, is_interleaved=True)


FAMILY = qwen3_next.FAMILY.like("Qwen3_5ForCausalLM", "qwen3_5_text", describe, defaults=qwen3_next.DEFAULTS)
