"""config.json of Gemma 4 in GGUF; see configs.py."""

from typing import Any

from runtime.gguf.configs import ROPE_FACTORS, ModelFields, read_floats

TABLE = "per_layer_token_embd.weight"
CAUSAL_SIZES = (1536, 2560)
"""The hidden sizes of E2B and E4B, whose tokens of images do not attend to later ones. The file does not say so."""

UNROTATED = 1e30
"""The factor of frequencies in `ROPE_FACTORS` which makes them 0, at least."""


def gemma4_config(fields: ModelFields) -> dict[str, Any]:
    num_layers, num_shared = fields.num_layers(), fields.whole("attention.shared_kv_layers")
    has_window = fields.flags("attention.sliding_window_pattern", num_layers, 6)
    sizes = fields.counts("feed_forward_length", num_layers)
    num_heads = fields.count("attention.head_count")
    num_kv_heads = fields.counts("attention.head_count_kv", num_layers, num_heads)
    head_dims = fields.count("attention.key_length"), fields.count("attention.key_length_swa")
    fields.require("attention.value_length", head_dims[0])
    fields.require("attention.value_length_swa", head_dims[1])
    fields.require("rope.dimension_count_swa", head_dims[1])
    whole = [index for index in range(num_layers) if not has_window[index]]
    local = num_kv_heads[has_window.index(True)] if any(has_window) else num_kv_heads[0]
    own = {
        index: {} if num_kv_heads[index] == local else {"num_key_value_heads": num_kv_heads[index]} for index in whole
    }
    return {
        "hidden_size": fields.count("embedding_length"),
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": sizes[-1] == 2 * sizes[0],
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": local,
        "head_dim": head_dims[1],
        "per_layer_config": {str(index): {"head_dim": head_dims[0], **own[index]} for index in whole},
        "attention_k_eq_v": not any(fields.has(f"blk.{index}.attn_v.weight") for index in whole),
        "num_kv_shared_layers": num_shared,
        "layer_types": ["sliding_attention" if flag else "full_attention" for flag in has_window],
        "sliding_window": fields.count("attention.sliding_window"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": fields.number("rope.freq_base"),
                "partial_rotary_factor": _read_rotated_part(fields, head_dims[0]),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", 10_000.0)},
        },
        "hidden_size_per_layer_input": fields.whole("embedding_length_per_layer_input"),
        **({"vocab_size_per_layer_input": fields.file.tensors[TABLE].shape[0]} if fields.has(TABLE) else {}),
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 0.0) or None,
        "use_bidirectional_attention": None if fields.count("embedding_length") in CAUSAL_SIZES else "vision",
        **_read_experts(fields),
    }


def _read_rotated_part(fields: ModelFields, head_dim: int) -> float:
    """Returns the part of the pairs of a head that are rotated; others have a factor that leaves them as they are."""
    if not fields.has(ROPE_FACTORS):
        return 1.0
    factors = read_floats(fields.file.tensors[ROPE_FACTORS], head_dim // 2)
    num_rotated = factors.count(1.0)
    if factors[:num_rotated] != [1.0] * num_rotated or any(factor < UNROTATED for factor in factors[num_rotated:]):
        raise fields.fault(
            "rope.freq_base", factors[:4], f"supported factors in {ROPE_FACTORS} are 1 and then {UNROTATED}"
        )
    return num_rotated / len(factors)


def _read_experts(fields: ModelFields) -> dict[str, Any]:
    if not fields.has_key("expert_count"):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": fields.count("expert_count"),
        "top_k_experts": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
    }
