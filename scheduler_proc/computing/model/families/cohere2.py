"""Cohere 2 (Command R7B): attention and MLP side by side after one layer norm; rotated only in layers with windows.

In its checkpoints neighbouring rows of query and key are rotated together; they are loaded in our order.
"""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription, NormDescription
from scheduler_proc.computing.model.families import glm4, llama
from scheduler_proc.computing.model.families.family import Source
from scheduler_proc.computing.model.families.layer_kinds import WHOLE_CONTEXT, WINDOW, describe_kinds

NORMS = {"input_layernorm": "attention_norm"}
DEFAULTS = HfConfig(
    {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "sliding_window": 4096, "tie_word_embeddings": True}
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    attention = llama.describe_attention(hf_config, has_bias=hf_config.flag("attention_bias", False))
    ropes = {WINDOW: attention.rope, WHOLE_CONTEXT: None}
    attentions = describe_kinds(hf_config, attention, max_model_len, period=4, ropes=ropes)
    size, eps = hf_config.count("hidden_size"), hf_config.number("layer_norm_eps")
    norm = NormDescription(kind="layer", size=size, eps=eps, has_bias=False)
    model = llama.describe_model(hf_config, attentions, norm=norm, norms=NORMS)
    layers = tuple(replace(layer, is_parallel=True) for layer in model.layers)
    return replace(model, layers=layers, logit_scale=hf_config.number("logit_scale"))


def list_sources(model: ModelDescription) -> list[Source]:
    return glm4.with_interleaved_heads(llama.list_sources(model, norms=NORMS), model)


FAMILY = llama.FAMILY.like("Cohere2ForCausalLM", "cohere2", describe, list_sources, defaults=DEFAULTS)
