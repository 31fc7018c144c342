"""Small random checkpoints of every kind the server reads, and the configuration to serve them."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import transformers  # imports its models, which takes seconds, only when tests first use them

from messages.config.images import ImageConfig
from messages.config.server import (
    CacheConfig,
    Config,
    DraftFacts,
    HttpConfig,
    ModelConfig,
    ModelFacts,
    RunConfig,
    SchedulingConfig,
)
from runtime.model_files import read_config
from tests.tiny_llama import VOCAB_SIZE

SavedAs = Literal["safetensors", "sharded", "pt", "pt-sharded"]

CONTEXT = 96
SECTIONS = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduling": SchedulingConfig,
    "http": HttpConfig,
    "run": RunConfig,
    "images": ImageConfig,
}

GPT2_VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-exact-gelu": {"activation_function": "gelu", "n_inner": 56, "layer_norm_epsilon": 1e-3},
    "gpt2-unscaled": {"scale_attn_weights": False},
}
LLAMA_VARIANTS: dict[str, dict[str, Any]] = {
    "llama-mha": {"num_key_value_heads": 4},
    "llama-gqa-tied": {"tie_word_embeddings": True},
    "llama-mqa": {"num_key_value_heads": 1},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {"head_dim": 24},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama-llama3": {
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}
MISTRAL_VARIANTS: dict[str, dict[str, Any]] = {"mistral-window": {"sliding_window": 16}}
QWEN2_VARIANTS: dict[str, dict[str, Any]] = {
    "qwen2-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 24,
        }
    },
    "qwen2-gqa-tied": {"tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen2-mha-untied": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen2-windows": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3, "num_hidden_layers": 6},
}
QWEN3_VARIANTS: dict[str, dict[str, Any]] = {
    "qwen3-gqa-tied": {"head_dim": 24, "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3-biases-untied": {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": False},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "head_dim": 16,
    "sliding_window": 11,
    "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 24,
    },
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 8.0, 16.0],
    "partial_rotary_factor": 0.75,
}
PHI3_VARIANTS: dict[str, dict[str, Any]] = {
    "phi3-window": {"sliding_window": 12, "rms_norm_eps": 1e-5},
    "phi3-short": {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT},
    "phi3-long": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 2, "tie_word_embeddings": True},
}
SMOLLM3_VARIANTS: dict[str, dict[str, Any]] = {
    "smollm3": {"num_hidden_layers": 5, "no_rope_layer_interval": 2, "rope_theta": 5e6}
}
GRANITE_VARIANTS: dict[str, dict[str, Any]] = {
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 3.0,
        "tie_word_embeddings": True,
        "rope_theta": 1e7,
        "rms_norm_eps": 1e-2,
    }
}
GLM4_VARIANTS: dict[str, dict[str, Any]] = {
    "glm4": {"head_dim": 24, "rms_norm_eps": 1e-5, "rope_theta": 100.0},
    "glm4-part-untied": {"head_dim": 16, "attention_bias": False, "partial_rotary_factor": 0.25},
}
GRANITE4_VARIANTS: dict[str, dict[str, Any]] = {
    "granite4": {
        **GRANITE_VARIANTS["granite"],
        "layer_types": ["full_attention"] * 3,
        "num_local_experts": 0,
        "shared_intermediate_size": 72,
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
    }
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 8}
GRANITE4_VARIANTS["granite4-h"] = GRANITE4_VARIANTS["granite4"] | {
    **MAMBA,
    "layer_types": ["mamba", "attention", "mamba"],
    "position_embedding_type": None,
}
LFM2_VARIANTS: dict[str, dict[str, Any]] = {
    "lfm2": {"num_hidden_layers": 4, "full_attn_idxs": [1, 3], "block_multiple_of": 32, "norm_eps": 1e-3},
    "lfm2-biases-untied": {
        "full_attn_idxs": [1],
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": False,
    },
}
MAMBA2_VARIANTS: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 8}
}
NEMOTRON_H = {"mamba_num_heads": 8, "mamba_head_dim": 24, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 8}
NEMOTRON_H_VARIANTS: dict[str, dict[str, Any]] = {
    "nemotron-h": {**NEMOTRON_H, "head_dim": 24, "layers_block_type": ["mamba", "attention", "mamba", "mlp"]}
}
FALCON_H1_FACTORS = {
    "embedding_multiplier": 5.6,
    "lm_head_multiplier": 0.3,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.35, 0.25, 0.5, 0.7, 0.9],
    "mlp_multipliers": [0.88, 0.59],
}
FALCON_H1_VARIANTS: dict[str, dict[str, Any]] = {
    "falcon-h1": {**MAMBA, **FALCON_H1_FACTORS, "mamba_d_ssm": 96, "num_hidden_layers": 2},
    "falcon-h1-norm": {**MAMBA, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_rms_norm": True},
}
MINISTRAL3_VARIANTS: dict[str, dict[str, Any]] = {
    "ministral3": {
        "head_dim": 24,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 6,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    }
}
WINDOWS = {"sliding_window": 11, "num_hidden_layers": 6}
LLAMA3_ROPE = LLAMA_VARIANTS["llama-llama3"]["rope_scaling"] | {"rope_theta": 500.0}
GEMMA2_VARIANTS: dict[str, dict[str, Any]] = {
    "gemma2": WINDOWS | {"head_dim": 24, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0},
    "gemma2-biases-untied": {
        "head_dim": 16,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}
GEMMA3_VARIANTS: dict[str, dict[str, Any]] = {
    "gemma3": WINDOWS
    | {
        "head_dim": 24,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 5000.0,
        "rope_local_base_freq": 100.0,
    },
    "gemma3-capped": {"head_dim": 16, "final_logit_softcapping": 2.0, "layer_types": ["full_attention"] * 3},
}
GEMMA4_WINDOWS = {"sliding_window": 11, "head_dim": 16, "global_head_dim": 32, "final_logit_softcapping": 30.0}
PERIOD_OF_3 = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA4_VARIANTS: dict[str, dict[str, Any]] = {
    "gemma4-shared-kv": GEMMA4_WINDOWS
    | {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2 + ["full_attention"],
        "num_hidden_layers": 7,
        "num_kv_shared_layers": 4,
        "num_key_value_heads": 1,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
    },
    "gemma4-one-kv": GEMMA4_WINDOWS
    | {
        "layer_types": PERIOD_OF_3,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
    },
}
OLMO2_VARIANTS: dict[str, dict[str, Any]] = {"olmo2": {"attention_bias": True}}
OLMO3_VARIANTS: dict[str, dict[str, Any]] = {"olmo3": WINDOWS | {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500.0}}
COHERE2_VARIANTS: dict[str, dict[str, Any]] = {
    "cohere2": WINDOWS | {"logit_scale": 0.25, "rope_theta": 500.0, "sliding_window_pattern": 2},
    "cohere2-biases-untied": WINDOWS | {"attention_bias": True, "tie_word_embeddings": False},
}
EXAONE4_VARIANTS: dict[str, dict[str, Any]] = {
    "exaone4": WINDOWS | {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "exaone4-no-windows": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
QWEN3_5_VARIANTS: dict[str, dict[str, Any]] = {
    "qwen3_5-biases-untied": HYBRID | {"attention_bias": True, "linear_num_key_heads": 4, "linear_value_head_dim": 8},
    "qwen3_5": HYBRID
    | {"tie_word_embeddings": True, "linear_conv_kernel_dim": 3, "num_hidden_layers": 4}
    | {"layer_types": [*HYBRID["layer_types"], "full_attention"]},
}
LATENTS = {
    "q_lora_rank": 24,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "rope_theta": 500.0,
}
MLA = LATENTS | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
INDEXER = {"index_topk": CONTEXT, "index_n_heads": 8, "index_head_dim": 16}
MLA_YARN: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
    }
}
MINICPM3_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": CONTEXT,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 1.5, 2.5, 4.0],
}
LLAMA_LIKE = {
    "Llama": LLAMA_VARIANTS,
    "Mistral": MISTRAL_VARIANTS,
    "Qwen2": QWEN2_VARIANTS,
    "Qwen3": QWEN3_VARIANTS,
    "Phi3": PHI3_VARIANTS,
    "SmolLM3": SMOLLM3_VARIANTS,
    "Granite": GRANITE_VARIANTS,
    "Ministral3": MINISTRAL3_VARIANTS,
    "GraniteMoeHybrid": GRANITE4_VARIANTS,
    "Glm4": GLM4_VARIANTS,
    "Gemma2": GEMMA2_VARIANTS,
    "Gemma3": GEMMA3_VARIANTS,
    "Gemma4": GEMMA4_VARIANTS,
    "Olmo2": OLMO2_VARIANTS,
    "Olmo3": OLMO3_VARIANTS,
    "Cohere2": COHERE2_VARIANTS,
    "Exaone4": EXAONE4_VARIANTS,
    "Qwen3_5": QWEN3_5_VARIANTS,
    "Lfm2": LFM2_VARIANTS,
    "Mamba2": MAMBA2_VARIANTS,
    "NemotronH": NEMOTRON_H_VARIANTS,
    "FalconH1": FALCON_H1_VARIANTS,
    "Youtu": {"youtu": LATENTS},
    "MiniCPM3": {
        "minicpm3": {**LATENTS, "rope_parameters": MINICPM3_ROPE, "scale_emb": 3, "dim_model_base": 16},
        "minicpm3-untied": {**LATENTS, "q_lora_rank": None, "tie_word_embeddings": False},
    },
}
"""By the prefix of the classes of transformers."""

ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
ROUTED |= {"n_shared_experts": 1}
EXPERT_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "Gemma4": {
        "gemma4-experts": GEMMA4_WINDOWS
        | {
            "layer_types": PERIOD_OF_3,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 32,
        },
    },
    "Mixtral": {"mixtral": {"num_local_experts": 4, "sliding_window": None}},
    "Qwen2Moe": {"qwen2moe": {**EXPERTS, "shared_expert_intermediate_size": 64}},
    "Qwen3Moe": {"qwen3moe": {**EXPERTS, "head_dim": 8, "norm_topk_prob": True}},
    "GptOss": {"gpt-oss": GPT_OSS},
    "Glm4Moe": {
        "glm4moe": {
            **ROUTED,
            "head_dim": 24,
            "attention_bias": True,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
        },
        "glm4moe-groups": {**ROUTED, "n_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": False},
    },
    "Dots1": {"dots1": {**ROUTED, "norm_topk_prob": True, "n_group": 2, "topk_group": 1}},
    "Ernie4_5_Moe": {
        "ernie4-5-moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1}
    },
    "GraniteMoe": {"granitemoe": {**GRANITE_VARIANTS["granite"], "num_local_experts": 4, "num_experts_per_tok": 2}},
    "GraniteMoeShared": {
        "granitemoe-shared": {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64}
    },
    "Qwen3_5Moe": {"qwen3_5-moe": {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 64}},
    "Qwen3Next": {
        "qwen3-next": {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 64, "mlp_only_layers": [1]},
    },
    "GraniteMoeHybrid": {
        "granite4-h-experts": {**GRANITE4_VARIANTS["granite4-h"], "num_local_experts": 4, "num_experts_per_tok": 2}
    },
    "Lfm2Moe": {
        "lfm2moe": {**EXPERTS, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}
        | {"routed_scaling_factor": 1.5}
    },
    "NemotronH": {
        "nemotron-h-experts": {
            **NEMOTRON_H,
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 2.5,
        }
    },
    "DeepseekV2": {
        "deepseek-v2": MLA | {"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"} | MLA_YARN,
        "deepseek-v2-lite": {**MLA, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 2},
    },
    "DeepseekV3": {
        "deepseek-v3": {**MLA, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": False},
        "kanana-yarn": MLA | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "attention_bias": True} | MLA_YARN,
    },
    "Glm4MoeLite": {"glm4-moe-lite": {**MLA, "v_head_dim": 64, "rms_norm_eps": 1e-2, "rope_interleave": False}},
    "DeepseekV32": {"deepseek-v32": {**MLA, **INDEXER, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}},
    "GlmMoeDsa": {"glm-moe-dsa": {**MLA, **INDEXER, "first_k_dense_replace": 1}},
    "Mistral4": {
        "mistral4": MLA
        | {"rope_parameters": MLA_YARN["rope_parameters"] | {"llama_4_scaling_beta": 0.3}, "rms_norm_eps": 1e-3}
    },
    "Olmoe": {"olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}},
}
TRANSFORMERS_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "GPTNeoX": {"gpt_neox": {"rotary_pct": 0.25}},
    "OPT": {"opt": {"ffn_dim": 88, "word_embed_proj_dim": 32, "do_layer_norm_before": False}},
    "Starcoder2": {"starcoder2": {"sliding_window": 11}},
}
"""Likewise, families that only transformers computes."""
MROPE = {"rope_type": "default", "rope_theta": 1e6}
IMAGE_VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "Qwen2VL": {"qwen2-vl": {"tie_word_embeddings": True}},
    "Qwen2_5_VL": {"qwen2_5-vl": {}},
    "Qwen3VL": {"qwen3-vl": {"head_dim": 24, "tie_word_embeddings": True}},
    "Qwen3VLMoe": {
        "qwen3-vl-moe": {
            **EXPERTS,
            "moe_intermediate_size": 40,
            "head_dim": 16,
            "tie_word_embeddings": False,
        }
    },
}
"""Fields of the language models of families that are named after models of images and text."""

KNOWN = (
    {family: LLAMA_LIKE.get(family, {}) | EXPERT_VARIANTS.get(family, {}) for family in LLAMA_LIKE | EXPERT_VARIANTS}
    | TRANSFORMERS_VARIANTS
    | IMAGE_VARIANTS
)
VARIANTS = [*GPT2_VARIANTS, *(variant for variants in LLAMA_LIKE.values() for variant in variants)]
EVERY_ARCHITECTURE: dict[str, tuple[str, ...]] = {
    "GPT2LMHeadModel": tuple(GPT2_VARIANTS),
    **{f"{prefix}ForCausalLM": tuple(KNOWN[prefix]) for prefix in LLAMA_LIKE | EXPERT_VARIANTS},
    **{f"{prefix}ForConditionalGeneration": tuple(KNOWN[prefix]) for prefix in IMAGE_VARIANTS},
}
"""The variants of each architecture that a family describes."""

TEXT_CONFIGS = ("Gemma3", "Gemma4", "Qwen3_5", "Qwen3_5Moe")
KEPT_BUFFERS = ("layer_scalar", "e_score_correction_bias", "expert_bias")
"""Ends of the names of parameters that transformers holds as buffers."""


def build_checkpoint(
    path: Path, variant: str, saved_as: SavedAs = "safetensors", **overrides: Any
) -> "transformers.PreTrainedModel":
    """Writes the checkpoint into `path` and returns the float32 model. Its values are the same in every call.

    `overrides` are fields of the Hugging Face configuration. The weights are large, so that a row's best token has a
    clear lead. Biases are not left at 0, and norms not at 1.
    """
    if variant in GPT2_VARIANTS:
        model = transformers.GPT2LMHeadModel(_gpt2_config(GPT2_VARIANTS[variant] | overrides))
    else:
        model = _make_llama_like(variant, overrides)
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        scales = [buffer for name, buffer in model.named_buffers() if name.endswith(KEPT_BUFFERS)]
        for parameter in [*model.parameters(), *scales]:
            center = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.normal_(center, 0.2, generator=generator)
    _save(model, path, saved_as)
    return model.eval()


def _gpt2_config(overrides: dict[str, Any]) -> "transformers.GPT2Config":
    shape = {"vocab_size": VOCAB_SIZE, "n_positions": CONTEXT, "n_embd": 48, "n_layer": 3, "n_head": 3}
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2Config(**(shape | ends | overrides))


def _make_llama_like(variant: str, overrides: dict[str, Any]) -> "transformers.PreTrainedModel":
    shape = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "hidden_size": 64,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    family = next(family for family, variants in KNOWN.items() if variant in variants)
    if family in IMAGE_VARIANTS:
        return _make_image_model(family, shape | ends | IMAGE_VARIANTS[family][variant] | overrides)
    config_class = f"{family}{'TextConfig' if family in TEXT_CONFIGS else 'Config'}"
    hf_config = getattr(transformers, config_class)(**(shape | ends | KNOWN[family][variant] | overrides))
    return getattr(transformers, f"{family}ForCausalLM")(hf_config)


def _make_image_model(family: str, text: dict[str, Any]) -> "transformers.PreTrainedModel":
    """The model has the smallest encoder, which no prompt of text needs."""
    encoder = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "deepstack_visual_indexes": [0]}
    encoder |= {"out_hidden_size": text["hidden_size"], "num_position_embeddings": 16, "embed_dim": 32}
    pairs = (text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]) // 2
    lines = pairs * 3 // 8
    text["rope_parameters"] = MROPE | {"mrope_section": [pairs - 2 * lines, lines, lines]}
    sections = {
        "text_config": text,
        "vision_config": encoder,
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }
    hf_config = getattr(transformers, f"{family}Config")(**sections)
    return getattr(transformers, f"{family}ForConditionalGeneration")(hf_config)


def _save(model: "transformers.PreTrainedModel", path: Path, saved_as: SavedAs) -> None:
    if saved_as in ("safetensors", "sharded"):
        model.save_pretrained(path, max_shard_size="5GB" if saved_as == "safetensors" else "60KB")
        return
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    state = model.state_dict()
    if saved_as == "pt":
        torch.save(state, path / "pytorch_model.bin")
        return
    names = list(state)
    shards = {
        "pytorch_model-00001-of-00002.bin": names[: len(names) // 2],
        "pytorch_model-00002-of-00002.bin": names[len(names) // 2 :],
    }
    for file, held in shards.items():
        torch.save({name: state[name].clone() for name in held}, path / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def _read_hf_config(model_dir: Path) -> tuple[dict[str, Any], int]:
    """Returns config.json, with the fields of a model of several kinds' decoder, and its context length."""
    hf_config = read_config(model_dir / "config.json")
    hf_config = hf_config.get("text_config", hf_config.get("llm_config", {})) | hf_config
    return hf_config, hf_config.get("n_positions") or hf_config["max_position_embeddings"]


def make_config(model_dir: Path, **flags: Any) -> Config:
    """Returns a configuration that serves `model_dir`. `flags` are fields of any section, by name.

    Defaults: float32 on the CPU, one thread, enough pages for a few requests, and no draft tokens.
    """
    hf_config, context = _read_hf_config(model_dir)
    max_model_len = min(context, flags.get("max_model_len") or context)
    draft = None
    if "draft_model" in flags:
        draft_dir = flags["draft_model"] = str(flags["draft_model"])
        draft_hf_config, draft_context = _read_hf_config(Path(draft_dir))
        draft_max_len = min(draft_context, max_model_len)
        vocab_size = draft_hf_config["vocab_size"]
        draft = DraftFacts(model_dir=draft_dir, vocab_size=vocab_size, max_model_len=draft_max_len)
        flags["speculative"] = "draft"
    eos = hf_config.get("eos_token_id")
    own = {"model": str(model_dir), "dtype": "float32", "device": "cpu", "cpu_threads": 1, "num_pages": 256}
    flags = own | {"speculative": "none"} | flags
    sections = {
        name: struct(**{field: flags.pop(field) for field in struct.__struct_fields__ if field in flags})
        for name, struct in SECTIONS.items()
    }
    assert not flags, f"no flag has the name {', '.join(flags)}"
    facts = ModelFacts(
        model_dir=str(model_dir),
        tokenizer_dir=str(model_dir),
        served_names=(model_dir.name,),
        vocab_size=hf_config["vocab_size"],
        max_model_len=max_model_len,
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        draft=draft,
    )
    return msgspec.convert(sections | {"facts": facts}, Config, from_attributes=True)
