"""Qwen3.5 and Qwen3.6, the dense models: Qwen3-Next without experts, under other names of tensors."""

from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama, qwen3_next


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config = qwen3_next.DEFAULTS.overridden(hf_config)
    num_layers = hf_config.count("num_hidden_layers", most=MAX_LAYERS)
    return qwen3_next.describe_hybrid(hf_config, [llama.describe_dense_mlp(hf_config)] * num_layers)


FAMILY = qwen3_next.FAMILY.like("Qwen3_5ForCausalLM", "qwen3_5_text", describe)
