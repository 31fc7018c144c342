"""config.json of dense models in GGUF that descend from Llama and have fields of their own."""

from typing import Any

from runtime.gguf.configs import ModelFields, dense_llama_config, llama_config


def phi3_config(fields: ModelFields) -> dict[str, Any]:
    config = llama_config(fields, rotates_parts=True)
    context = config["max_position_embeddings"]
    return {
        **config,
        "sliding_window": fields.whole("attention.sliding_window") or None,
        "original_max_position_embeddings": fields.count("rope.scaling.original_context_length", context),
    }


def smollm3_config(fields: ModelFields) -> dict[str, Any]:
    return {**dense_llama_config(fields), "no_rope_layer_interval": 4}


def granite_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_count", 0)
    return granite_fields(fields)


def granite_fields(fields: ModelFields, *, is_rotated: bool = True) -> dict[str, Any]:
    """Returns what all models of Granite have, with experts or without."""
    fields.require("rope.scaling.finetuned", is_rotated)
    config = llama_config(fields)
    return {
        **config,
        "intermediate_size": fields.count("expert_shared_feed_forward_length", config["intermediate_size"]),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "attention_multiplier": fields.number("attention.scale", config["head_dim"] ** -0.5),
        "logits_scaling": fields.number("logit_scale"),
    }


def glm4_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("nextn_predict_layers", 0)
    fields.require("rope.dimension_sections", [])  # of images, for which rows are in another order
    return llama_config(fields, rotates_parts=True)


def qwen2_vl_config(fields: ModelFields) -> dict[str, Any]:
    return with_axes(dense_llama_config(fields), fields)


def qwen3_vl_config(fields: ModelFields) -> dict[str, Any]:
    return with_parts(dense_llama_config(fields), fields)


def with_parts(config: dict[str, Any], fields: ModelFields) -> dict[str, Any]:
    """Returns the config with what images need in Qwen3-VL."""
    return {**with_axes(config, fields), "num_deepstack_layers": fields.whole("n_deepstack_layers")}


def with_axes(config: dict[str, Any], fields: ModelFields) -> dict[str, Any]:
    """Returns the config with the sections of positions with three axes; the file has a fourth one, which is empty."""
    sections = fields.counts("rope.dimension_sections", 4, 0, least=0)[:3]
    own = {"mrope_section": sections} if any(sections) else {}
    return {**config, "rope_parameters": {**config["rope_parameters"], **own}}


def mistral3_config(fields: ModelFields) -> dict[str, Any]:
    """Queries grow with their position in Ministral 3, not in Mistral Small 3, which is Mistral."""
    config, growth = dense_llama_config(fields), fields.number("attention.temperature_scale", 0.0)
    if not growth:
        return {**config, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return {**config, "rope_parameters": config["rope_parameters"] | {"llama_4_scaling_beta": growth}}
