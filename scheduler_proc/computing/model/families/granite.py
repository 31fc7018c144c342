"""Granite 3 and 4, the dense models: Llama with factors on embeddings, scores of attention, updates and logits.

A residual stream r to which m times an update is added computes the same as r / m, to which the update is added: norms
divide by the stream's size, if their epsilon is divided by m². So embeddings are divided by m, and updates keep theirs.
"""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import LayerDescription, ModelDescription, NormDescription
from scheduler_proc.computing.model.families import llama


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    model = llama.describe(hf_config, max_model_len)
    update_scale = hf_config.number("residual_multiplier", 1.0)
    score_scale = hf_config.number("attention_multiplier", 1.0)

    def adapt(layer: LayerDescription) -> LayerDescription:
        return replace(llama.with_attention(layer, scale=score_scale), attention_norm=norm, mlp_norm=norm)

    norm: NormDescription = replace(model.final_norm, eps=model.final_norm.eps / update_scale**2)
    return replace(
        model,
        layers=tuple(map(adapt, model.layers)),
        final_norm=norm,
        embedding_scale=hf_config.number("embedding_multiplier", 1.0) / update_scale,
        logit_scale=1 / hf_config.number("logits_scaling", 1.0),
    )


FAMILY = llama.FAMILY.like("GraniteForCausalLM", "granite", describe)
