"""config.json of models in GGUF with windows in some layers; see configs.py."""

from typing import Any

from runtime.gguf.configs import ModelFields, dense_llama_config, llama_config

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def _with_windows(fields: ModelFields, period: int, default: int | None = None) -> dict[str, Any]:
    """Returns config.json with the kinds of layers; `period`: by default, each layer of this number has no window."""
    config = llama_config(fields)
    size = fields.count(WINDOW, default) if default or fields.has_key(WINDOW) else None
    flags = fields.flags(PATTERN, config["num_hidden_layers"], period)
    kinds = ["sliding_attention" if size and has_window else "full_attention" for has_window in flags]
    return {**config, "sliding_window": size, "layer_types": kinds}


def _gemma_config(fields: ModelFields, config: dict[str, Any], largest: int) -> dict[str, Any]:
    """The largest model, which has this number of layers, has another scale of its scores, as has its config.json."""
    size, num_heads = config["hidden_size"], config["num_attention_heads"]
    is_largest = config["num_hidden_layers"] == largest
    return {
        **config,
        "query_pre_attn_scalar": size // num_heads if is_largest else config["head_dim"],
        "final_logit_softcapping": fields.number("final_logit_softcapping", 0.0) or None,
    }


def gemma2_config(fields: ModelFields) -> dict[str, Any]:
    softcap = fields.number("attn_logit_softcapping", 0.0) or None
    return {**_gemma_config(fields, _with_windows(fields, 2, 4096), 46), "attn_logit_softcapping": softcap}


def gemma3_config(fields: ModelFields) -> dict[str, Any]:
    config = _gemma_config(fields, _with_windows(fields, 6), 62)
    return {**config, "rope_parameters": _of_kinds(config, fields.number("rope.freq_base_swa", 10_000.0))}


def olmo_config(fields: ModelFields) -> dict[str, Any]:
    """OLMo 2, and OLMo 3, which has windows."""
    if not fields.has_key(WINDOW):
        return dense_llama_config(fields)
    config = _with_windows(fields, 4)
    theta = fields.number("rope.freq_base_swa", config["rope_parameters"]["rope_theta"])
    names = {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}
    return {**config, **names, "rope_parameters": _of_kinds(config, theta)}


def _of_kinds(config: dict[str, Any], theta: float) -> dict[str, Any]:
    """Returns the ropes by kind of layer; in layers with a window it is not scaled."""
    local = {"rope_type": "default", "rope_theta": theta}
    return {"full_attention": config["rope_parameters"], "sliding_attention": local}


def gpt_oss_config(fields: ModelFields) -> dict[str, Any]:
    """llama.cpp rounds the bounds of YaRN, which the model's own code does not (`truncate`)."""
    config = _with_windows(fields, 2)
    return {
        **config,
        "intermediate_size": fields.count("expert_feed_forward_length", config["intermediate_size"]),
        **fields.experts("num_local_experts"),
        "rope_parameters": config["rope_parameters"] | {"truncate": False},
    }


def exaone4_config(fields: ModelFields) -> dict[str, Any]:
    return _with_windows(fields, 4)


def cohere2_config(fields: ModelFields) -> dict[str, Any]:
    config = _with_windows(fields, 4)
    return {**config, "layer_norm_eps": config["rms_norm_eps"], "logit_scale": fields.number("logit_scale")}
