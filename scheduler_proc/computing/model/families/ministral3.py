"""Ministral 3, the language model: Mistral with YaRN, whose queries grow with their position."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama
from scheduler_proc.computing.model.families.rope import ORIGINAL


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    model = llama.describe(hf_config, max_model_len)
    rope, parameters = model.find(AttentionDescription)[0].rope, hf_config.section("rope_parameters")
    if parameters is None or rope is None:
        raise hf_config.error("rope_parameters", None, "an object")
    if rope.part != 1:
        raise parameters.refuse("partial_rotary_factor", rope.part, "supported is 1")
    growth, original = parameters.number("llama_4_scaling_beta"), parameters.count(ORIGINAL)
    rope = replace(rope, query_growth=growth, original_max_positions=original)
    return replace(model, layers=tuple(llama.with_attention(layer, rope=rope) for layer in model.layers))


FAMILY = llama.FAMILY.like("Ministral3ForCausalLM", "ministral3", describe)
