"""SmolLM3: Llama whose heads are not rotated in some layers, mostly each fourth."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import llama

DEFAULTS = HfConfig({"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True})


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hf_config.refuse_flag("use_sliding_window", "windows in SmolLM3 are not supported")
    model = llama.describe(hf_config, max_model_len)
    interval = hf_config.count("no_rope_layer_interval", 4)
    by_interval = [int((index + 1) % interval != 0) for index in range(len(model.layers))]
    has_rope = hf_config.indices("no_rope_layers") or by_interval
    if len(has_rope) < len(model.layers):
        raise hf_config.refuse("no_rope_layers", has_rope, f"there are {len(model.layers)} layers")
    layers = (
        llama.with_attention(layer, window=None, **({} if rotates else {"rope": None}))
        for layer, rotates in zip(model.layers, has_rope, strict=False)
    )
    return replace(model, layers=tuple(layers))


FAMILY = llama.FAMILY.like("SmolLM3ForCausalLM", "smollm3", describe, defaults=DEFAULTS)
