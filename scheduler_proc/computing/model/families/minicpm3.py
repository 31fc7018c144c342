"""MiniCPM3: latent attention, with factors on embeddings, updates and logits, which are applied as Granite's are."""

from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import latent, llama

DEFAULTS = HfConfig(
    {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-5}
    | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": True}
)


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    num_layers = hf_config.num_layers
    update_scale = (hf_config.optional_number("scale_depth") or num_layers**0.5) / num_layers**0.5
    attention = replace(latent.describe_attention(hf_config), has_neighbour_pairs=False)
    model = llama.describe_model(hf_config, [attention] * num_layers)
    norm = replace(model.final_norm, eps=model.final_norm.eps / update_scale**2)
    return replace(
        model,
        layers=tuple(replace(layer, attention_norm=norm, mlp_norm=norm) for layer in model.layers),
        final_norm=norm,
        embedding_scale=hf_config.number("scale_emb") / update_scale,
        logit_scale=hf_config.number("dim_model_base", model.hidden_size) / model.hidden_size,
    )


FAMILY = llama.FAMILY.like("MiniCPM3ForCausalLM", "minicpm3", describe, latent.list_sources, defaults=DEFAULTS)
