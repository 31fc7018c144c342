"""config.json of popular checkpoints, as far as it decides what is computed, and facts about them to check against.

Sizes are: hidden, MLP, layers, heads, key/value heads, vocabulary. A family adds its checkpoints to `REAL`.
"""

from dataclasses import dataclass, field
from typing import Any

Fields = dict[str, Any]
Sizes = tuple[int, int, int, int, int, int]
SIZE_FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


@dataclass(frozen=True)
class Real:
    """A checkpoint with `billions` of parameters, as its card has them.

    `windows`: the number of layers with each window, in the context of config.json. `num_unrotated`: attention
    without positions. `num_recurrent`: layers with a recurrent state.
    """

    billions: float
    sizes: Sizes
    fields: Fields
    context: int
    windows: dict[int, int] = field(default_factory=dict[int, int])
    num_unrotated: int = 0
    num_recurrent: int = 0

    @property
    def config(self) -> Fields:
        named = dict(zip(SIZE_FIELDS, self.sizes, strict=True))
        return named | {"max_position_embeddings": self.context} | self.fields


def kinds(num_layers: int, period: int) -> list[str]:
    return ["sliding_attention" if index % period else "full_attention" for index in range(1, num_layers + 1)]


def of(architecture: str, **fields: Any) -> Fields:
    return {"architectures": [f"{architecture}ForCausalLM"], "tie_word_embeddings": False, **fields}


def of_images(architecture: str, **fields: Any) -> Fields:
    return of(architecture, **fields) | {"architectures": [f"{architecture}ForConditionalGeneration"]}


TIED: Fields = {"tie_word_embeddings": True}
LLAMA3: Fields = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
GPT2: Fields = {"architectures": ["GPT2LMHeadModel"], "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
LLAMA_3_1 = of("Llama", rope_theta=5e5, rope_scaling=LLAMA3 | {"factor": 8.0})
LLAMA_3_2 = LLAMA_3_1 | TIED | {"rope_scaling": LLAMA3 | {"factor": 32.0}}
MISTRAL = of("Mistral", rope_theta=1e6, sliding_window=None, head_dim=128)
MINISTRAL_ROPE: Fields = {"rope_type": "yarn", "type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0}
MINISTRAL_ROPE |= {"original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0}
MINISTRAL_ROPE |= {"llama_4_scaling_beta": 0.1, "rope_theta": 1e6}
MINISTRAL = of("Ministral3", rope_parameters=MINISTRAL_ROPE, head_dim=128, sliding_window=None)
UNUSED_WINDOW: Fields = {"use_sliding_window": False, "sliding_window": 32768}
QWEN2 = of("Qwen2", rope_theta=1e6, max_window_layers=28, **UNUSED_WINDOW)
QWEN3 = of("Qwen3", rope_theta=1e6, head_dim=128, attention_bias=False, use_sliding_window=False, sliding_window=None)
DISTILLED = QWEN2 | {"rope_theta": 1e4, "sliding_window": 4096}
QWEN2_MOE = of("Qwen2Moe", rope_theta=1e6, norm_topk_prob=False, decoder_sparse_step=1, max_window_layers=21)
QWEN2_MOE |= UNUSED_WINDOW
QWEN3_MOE = QWEN3 | of("Qwen3Moe", norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
QWEN3_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
QWEN3_5_ROPE: Fields = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default"}
QWEN3_5_ROPE |= {"rope_theta": 10_000_000, "partial_rotary_factor": 0.25}
QWEN3_5 = of("Qwen3_5", rope_parameters=QWEN3_5_ROPE, head_dim=256, attn_output_gate=True, full_attention_interval=4)
QWEN3_5 |= {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
QWEN3_5 |= {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "mtp_num_hidden_layers": 1}
QWEN3_5_MOE = QWEN3_5 | of("Qwen3_5Moe", num_experts=256, num_experts_per_tok=8)
QWEN3_NEXT = QWEN3_5_MOE | of("Qwen3Next", num_experts=512, num_experts_per_tok=10, rope_scaling=None)
QWEN3_NEXT |= {"rope_parameters": None, "rope_theta": 1e7, "partial_rotary_factor": 0.25, "norm_topk_prob": True}


def expert_sizes(size: int) -> Fields:
    return {"moe_intermediate_size": size, "shared_expert_intermediate_size": size}


QWEN2_VL_ROPE: Fields = {"type": "mrope", "mrope_section": [16, 24, 24]}
QWEN3_VL_ROPE: Fields = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
QWEN2_VL = of_images("Qwen2VL", rope_theta=1e6, rope_scaling=QWEN2_VL_ROPE, **UNUSED_WINDOW)
QWEN2_5_VL = QWEN2_VL | of_images("Qwen2_5_VL")
QWEN3_VL = of_images("Qwen3VL", rope_theta=5e6, rope_scaling=QWEN3_VL_ROPE, head_dim=128)
QWEN3_VL_MOE = QWEN3_VL | of_images("Qwen3VLMoe", num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
LFM2 = of("Lfm2", rope_theta=1e6, full_attn_idxs=[2, 5, 8, 10, 12, 14], norm_eps=1e-5, conv_L_cache=3, **TIED)
LFM2_MOE = of("Lfm2Moe", rope_theta=1e6, moe_intermediate_size=1792, num_experts=32, num_experts_per_tok=4, **TIED)
LFM2_MOE |= {"layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)]}
NO_LIMIT: Fields = {"time_step_limit": [0.0, float("inf")]}
NEMOTRON_H = of("NemotronH", head_dim=128, n_groups=8, ssm_state_size=128, mlp_hidden_act="relu2", **NO_LIMIT)
NEMOTRON_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
NEMOTRON_9B = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
NEMOTRON_30B = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
FALCON_H1 = of("FalconH1", rope_theta=1e11, mamba_n_groups=1, mamba_rms_norm=False, mamba_norm_before_gate=False)
FALCON_H1 |= {"key_multiplier": 0.39, "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.35], "mlp_multipliers": [0.88, 0.59]}
MAMBA2 = of("Mamba2", num_heads=128, head_dim=64, n_groups=8, state_size=128, expand=2, use_conv_bias=True, **NO_LIMIT)


def granite4_h(attending: tuple[int, ...], num_layers: int, **sizes: Any) -> Fields:
    kinds = ["attention" if index in attending else "mamba" for index in range(num_layers)]
    mamba = {"mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1}
    return GRANITE4 | mamba | {"layer_types": kinds, "position_embedding_type": "nope"} | sizes


MIXTRAL = of("Mixtral", rope_theta=1e6, sliding_window=None, num_local_experts=8, num_experts_per_tok=2)
GEMMA2 = of("Gemma2", head_dim=256, query_pre_attn_scalar=256, sliding_window=4096, **TIED) | {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA3 = of("Gemma3", head_dim=256, query_pre_attn_scalar=256, sliding_window=1024, **TIED) | {
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}
GEMMA3_LARGE = GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
GEMMA4 = of("Gemma4", head_dim=256, sliding_window=512, final_logit_softcapping=30.0, **TIED)
GEMMA4_LARGE = GEMMA4 | {"sliding_window": 1024, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
GPT_OSS_ROPE: Fields = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
GPT_OSS_ROPE |= {"original_max_position_embeddings": 4096}
GPT_OSS = of("GptOss", rope_theta=150000, rope_scaling=GPT_OSS_ROPE, head_dim=64, sliding_window=128)
GPT_OSS |= {"num_experts_per_tok": 4, "attention_bias": True}
GLM4_MOE = of("Glm4Moe", rope_theta=1e6, head_dim=128, partial_rotary_factor=0.5, attention_bias=True)
GLM4_MOE |= {"num_experts_per_tok": 8, "n_shared_experts": 1, "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
DOTS1 = of("Dots1", rope_theta=1e7, head_dim=128, first_k_dense_replace=1, norm_topk_prob=True)
DOTS1 |= {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408}
ERNIE = of("Ernie4_5_Moe", moe_num_experts=64, moe_k=6, moe_num_shared_experts=2, moe_intermediate_size=1536, **TIED)
LATENTS: Fields = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
YARN_40: Fields = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}
DEEPSEEK_V2 = of("DeepseekV2", q_lora_rank=None, n_routed_experts=64, num_experts_per_tok=6, **LATENTS) | {
    "n_shared_experts": 2,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "rope_scaling": YARN_40 | {"mscale": 0.707, "mscale_all_dim": 0.707},
}
DEEPSEEK_V3 = of("DeepseekV3", q_lora_rank=1536, n_routed_experts=256, num_experts_per_tok=8, **LATENTS) | {
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "rope_scaling": YARN_40 | {"mscale": 1.0, "mscale_all_dim": 1.0},
}
KIMI_K2 = DEEPSEEK_V3 | {"n_routed_experts": 384, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
GLM_LATENTS: Fields = LATENTS | {"qk_nope_head_dim": 192, "v_head_dim": 256}
GLM4_LITE = of("Glm4MoeLite", q_lora_rank=768, n_routed_experts=64, num_experts_per_tok=4, **GLM_LATENTS) | {
    "moe_intermediate_size": 1536,
    "n_shared_experts": 1,
    "rope_theta": 1e6,
}
GLM_5 = of("GlmMoeDsa", q_lora_rank=2048, rope_theta=1e6, **GLM_LATENTS)
MINICPM3_ROPE: Fields = {"type": "longrope", "original_max_position_embeddings": 32768}
MINICPM3 = of("MiniCPM3", **TIED)
MINICPM3 |= {"rope_scaling": MINICPM3_ROPE | {"short_factor": [1.0] * 16, "long_factor": [1.1] * 16}}
GRANITE_MOE = of("GraniteMoe", embedding_multiplier=12.0, residual_multiplier=0.22, num_experts_per_tok=8, **TIED)
LONGROPE: Fields = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.1] * 48}
PHI3 = of("Phi3", original_max_position_embeddings=4096, rope_scaling=None, sliding_window=2047)
PHI3_LONG = PHI3 | {"rope_scaling": LONGROPE, "sliding_window": 262144}
OLMO2 = of("Olmo2", rope_theta=5e5, rms_norm_eps=1e-6)
YARN_8K: Fields = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
OLMO3 = of(
    "Olmo3", rope_theta=5e5, sliding_window=4096, rope_scaling=YARN_8K | {"attention_factor": 1.2079441541679836}
)
GRANITE3 = of("Granite", embedding_multiplier=12.0, residual_multiplier=0.22, rope_theta=1e7, **TIED) | {
    "attention_multiplier": 0.015625,
    "logits_scaling": 8.0,
}
GRANITE4 = GRANITE3 | of("GraniteMoeHybrid", num_local_experts=0, position_embedding_type="rope", **TIED)
GLM4 = of("Glm4", head_dim=128, partial_rotary_factor=0.5, attention_bias=True, rms_norm_eps=1e-5)
COHERE2 = of("Cohere2", rope_theta=5e4, sliding_window=4096, logit_scale=0.25, head_dim=128, **TIED)
COHERE2 |= {"layer_switch": 4, "sliding_window_pattern": 4, "use_qk_norm": False}
EXAONE4 = of("Exaone4", rope_theta=1e6, rope_scaling=LLAMA3 | {"factor": 16.0}, sliding_window=None)
SMOLLM3 = of("SmolLM3", rope_theta=5e6, no_rope_layers=[1, 1, 1, 0] * 9, layer_types=kinds(36, 1), **TIED)

FIFTHS = (5, 15, 25, 35)
REAL = {
    "LFM2 350M": Real(0.3545, (1024, 6656, 16, 16, 8, 65536), LFM2, 128000, num_recurrent=10),
    "LFM2 1.2B": Real(1.170, (2048, 12288, 16, 32, 8, 65536), LFM2, 128000, num_recurrent=10),
    "LFM2 8B-A1B": Real(8.34, (2048, 7168, 24, 32, 8, 65536), LFM2_MOE, 128000, num_recurrent=18),
    "Granite 4.0 H 350M": Real(
        0.340,
        (768, 2048, 32, 12, 4, 100352),
        granite4_h((10, 13, 17, 27), 32, mamba_n_heads=48, shared_intermediate_size=2048),
        32768,
        num_unrotated=4,
        num_recurrent=28,
    ),
    "Granite 4.0 H Micro": Real(
        3.19,
        (2048, 8192, 40, 32, 8, 100352),
        granite4_h(FIFTHS, 40, mamba_n_heads=64, shared_intermediate_size=8192),
        131072,
        num_unrotated=4,
        num_recurrent=36,
    ),
    "Granite 4.0 H Tiny": Real(
        6.94,
        (1536, 512, 40, 12, 4, 100352),
        granite4_h(FIFTHS, 40, mamba_n_heads=48, shared_intermediate_size=1024)
        | {"num_local_experts": 64, "num_experts_per_tok": 6},
        131072,
        num_unrotated=4,
        num_recurrent=36,
    ),
    "Granite 4.0 H Small": Real(
        32.2,
        (4096, 768, 40, 32, 8, 100352),
        granite4_h(FIFTHS, 40, mamba_n_heads=128, shared_intermediate_size=1536)
        | {"num_local_experts": 72, "num_experts_per_tok": 10},
        131072,
        num_unrotated=4,
        num_recurrent=36,
    ),
    "Nemotron-H 8B": Real(
        8.10,
        (4096, 21504, 52, 32, 8, 131072),
        NEMOTRON_H | {"mamba_num_heads": 128, "mamba_head_dim": 64, "hybrid_override_pattern": NEMOTRON_8B},
        8192,
        num_unrotated=4,
        num_recurrent=24,
    ),
    "Nemotron Nano 9B v2": Real(
        8.89,
        (4480, 15680, 56, 40, 8, 131072),
        NEMOTRON_H | {"mamba_num_heads": 128, "mamba_head_dim": 80, "hybrid_override_pattern": NEMOTRON_9B},
        131072,
        num_unrotated=4,
        num_recurrent=27,
    ),
    "Nemotron 3 Nano 30B-A3B": Real(
        31.58,
        (2688, 1856, 52, 32, 2, 131072),
        NEMOTRON_H
        | {"mamba_num_heads": 64, "mamba_head_dim": 64, "hybrid_override_pattern": NEMOTRON_30B}
        | {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
        | {"moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
        262144,
        num_unrotated=6,
        num_recurrent=23,
    ),
    "Mamba-Codestral 7B": Real(7.285, (4096, 0, 64, 0, 0, 32768), MAMBA2, 1 << 20, num_recurrent=64),
    "Falcon-H1 0.5B": Real(
        0.521,
        (1024, 2048, 36, 8, 2, 32784),
        FALCON_H1 | {"head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128},
        16384,
        num_recurrent=36,
    ),
    "Falcon-H1 7B": Real(
        7.586,
        (3072, 12288, 44, 12, 2, 130049),
        FALCON_H1 | {"head_dim": 128, "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_state": 256},
        262144,
        num_recurrent=44,
    ),
    "GPT-2": Real(0.1244, (768, 3072, 12, 12, 12, 50257), GPT2, 1024, num_unrotated=12),
    "SmolLM2 135M": Real(0.1345, (576, 1536, 30, 9, 3, 49152), of("Llama", rope_theta=1e5, **TIED), 8192),
    "SmolLM2 1.7B": Real(1.711, (2048, 8192, 24, 32, 32, 49152), of("Llama", rope_theta=130000, **TIED), 8192),
    "Llama 3.2 1B": Real(1.236, (2048, 8192, 16, 32, 8, 128256), LLAMA_3_2 | {"head_dim": 64}, 131072),
    "Llama 3.2 3B": Real(3.213, (3072, 8192, 28, 24, 8, 128256), LLAMA_3_2 | {"head_dim": 128}, 131072),
    "Llama 3.1 8B": Real(8.030, (4096, 14336, 32, 32, 8, 128256), LLAMA_3_1, 131072),
    "Llama 3.3 70B": Real(70.55, (8192, 28672, 80, 64, 8, 128256), LLAMA_3_1, 131072),
    "R1 Distill Qwen 1.5B": Real(1.777, (1536, 8960, 28, 12, 2, 151936), DISTILLED, 131072),
    "R1 Distill Qwen 7B": Real(7.616, (3584, 18944, 28, 28, 4, 152064), DISTILLED, 131072),
    "R1 Distill Qwen 32B": Real(32.76, (5120, 27648, 64, 40, 8, 152064), DISTILLED | {"rope_theta": 1e6}, 131072),
    "Mistral 7B v0.1": Real(
        7.242, (4096, 14336, 32, 32, 8, 32000), MISTRAL | {"sliding_window": 4096, "rope_theta": 1e4}, 32768, {4096: 32}
    ),
    "Mistral 7B v0.3": Real(7.248, (4096, 14336, 32, 32, 8, 32768), MISTRAL, 32768),
    "Mistral Nemo": Real(12.25, (5120, 14336, 40, 32, 8, 131072), MISTRAL, 131072),
    "Mistral Small 3": Real(23.57, (5120, 32768, 40, 32, 8, 131072), MISTRAL | {"rope_theta": 1e8}, 32768),
    "Ministral 3 3B": Real(3.43, (3072, 9216, 26, 32, 8, 131072), MINISTRAL | TIED, 262144),
    "Ministral 3 8B": Real(8.49, (4096, 14336, 34, 32, 8, 131072), MINISTRAL, 262144),
    "Ministral 3 14B": Real(13.51, (5120, 16384, 40, 32, 8, 131072), MINISTRAL, 262144),
    "Mixtral 8x7B": Real(46.70, (4096, 14336, 32, 32, 8, 32000), MIXTRAL, 32768),
    "Mixtral 8x22B": Real(140.6, (6144, 16384, 56, 48, 8, 32768), MIXTRAL, 65536),
    "Qwen2.5 0.5B": Real(0.494, (896, 4864, 24, 14, 2, 151936), QWEN2 | TIED, 32768),
    "Qwen2.5 7B": Real(7.616, (3584, 18944, 28, 28, 4, 152064), QWEN2, 32768),
    "Qwen2.5 72B": Real(72.71, (8192, 29568, 80, 64, 8, 152064), QWEN2 | {"max_window_layers": 80}, 32768),
    "Qwen1.5-MoE A2.7B": Real(
        14.32,
        (2048, 5632, 24, 16, 16, 151936),
        QWEN2_MOE
        | {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
        | {"shared_expert_intermediate_size": 5632},
        8192,
    ),
    "Qwen2 57B-A14B": Real(
        57.41,
        (3584, 18944, 28, 28, 4, 151936),
        QWEN2_MOE
        | {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560}
        | {"shared_expert_intermediate_size": 20480},
        32768,
    ),
    "Qwen3 0.6B": Real(0.596, (1024, 3072, 28, 16, 8, 151936), QWEN3 | TIED, 40960),
    "Qwen3 4B": Real(4.022, (2560, 9728, 36, 32, 8, 151936), QWEN3 | TIED, 40960),
    "Qwen3 8B": Real(8.191, (4096, 12288, 36, 32, 8, 151936), QWEN3, 40960),
    "Qwen3 14B": Real(14.77, (5120, 17408, 40, 40, 8, 151936), QWEN3, 40960),
    "Qwen3 32B": Real(32.76, (5120, 25600, 64, 64, 8, 151936), QWEN3, 40960),
    "Qwen3 30B-A3B": Real(30.53, (2048, 6144, 48, 32, 4, 151936), QWEN3_MOE, 40960),
    "Qwen3 30B-A3B 2507": Real(30.53, (2048, 6144, 48, 32, 4, 151936), QWEN3_MOE | {"rope_theta": 1e7}, 262144),
    "Qwen3 Coder 30B-A3B": Real(30.53, (2048, 5472, 48, 32, 4, 151936), QWEN3_MOE | {"rope_theta": 1e7}, 262144),
    "Qwen3 235B-A22B": Real(
        235.1, (4096, 12288, 94, 64, 4, 151936), QWEN3_MOE | {"moe_intermediate_size": 1536}, 40960
    ),
    "Qwen2-VL 2B": Real(1.544, (1536, 8960, 28, 12, 2, 151936), QWEN2_VL | TIED, 32768),
    "Qwen2.5-VL 3B": Real(3.086, (2048, 11008, 36, 16, 2, 151936), QWEN2_5_VL | TIED, 128000),
    "Qwen3-VL 4B": Real(4.022, (2560, 9728, 36, 32, 8, 151936), QWEN3_VL | TIED, 262144),
    "Qwen3-VL 30B-A3B": Real(30.53, (2048, 6144, 48, 32, 4, 151936), QWEN3_VL_MOE, 262144),
    "Qwen3.5 0.8B": Real(
        0.752, (1024, 3584, 24, 8, 2, 248320), QWEN3_5 | TIED | {"linear_num_value_heads": 16}, 262144, num_recurrent=18
    ),
    "Qwen3.5 2B": Real(
        1.882, (2048, 6144, 24, 8, 2, 248320), QWEN3_5 | TIED | {"linear_num_value_heads": 16}, 262144, num_recurrent=18
    ),
    "Qwen3.5 4B": Real(4.206, (2560, 9216, 32, 16, 4, 248320), QWEN3_5 | TIED, 262144, num_recurrent=24),
    "Qwen3.5 9B": Real(8.954, (4096, 12288, 32, 16, 4, 248320), QWEN3_5, 262144, num_recurrent=24),
    "Qwen3.6 27B": Real(
        26.9, (5120, 17408, 64, 24, 4, 248320), QWEN3_5 | {"linear_num_value_heads": 48}, 262144, num_recurrent=48
    ),
    "Qwen3.8 27B": Real(
        26.9,
        (5120, 17408, 64, 24, 4, 248320),
        QWEN3_5 | {"linear_num_value_heads": 48, "output_gate_type": "swish"},
        262144,
        num_recurrent=48,
    ),
    "Qwen3.6 35B-A3B": Real(
        34.66, (2048, 0, 40, 16, 2, 248320), QWEN3_5_MOE | expert_sizes(512), 262144, num_recurrent=30
    ),
    "Qwen3.5 122B-A10B": Real(
        122.1,
        (3072, 0, 48, 32, 2, 248320),
        QWEN3_5_MOE | expert_sizes(1024) | {"linear_num_value_heads": 64},
        262144,
        num_recurrent=36,
    ),
    "Qwen3.5 397B-A17B": Real(
        396.3,
        (4096, 0, 60, 32, 2, 248320),
        QWEN3_5_MOE
        | expert_sizes(1024)
        | {"linear_num_value_heads": 64, "num_experts": 512, "num_experts_per_tok": 10},
        262144,
        num_recurrent=45,
    ),
    "Qwen3-Next 80B-A3B": Real(
        79.67, (2048, 5120, 48, 16, 2, 151936), QWEN3_NEXT | expert_sizes(512), 262144, num_recurrent=36
    ),
    "Gemma 2 2B": Real(2.614, (2304, 9216, 26, 8, 4, 256000), GEMMA2, 8192, {4096: 13}),
    "Gemma 2 9B": Real(9.242, (3584, 14336, 42, 16, 8, 256000), GEMMA2, 8192, {4096: 21}),
    "Gemma 2 27B": Real(
        27.23,
        (4608, 36864, 46, 32, 16, 256000),
        GEMMA2 | {"head_dim": 128, "query_pre_attn_scalar": 144},
        8192,
        {4096: 23},
    ),
    "Gemma 3 270M": Real(
        0.268,
        (640, 2048, 18, 4, 1, 262144),
        GEMMA3 | {"sliding_window": 512, "layer_types": kinds(18, 6)},
        32768,
        {512: 15},
    ),
    "Gemma 3 1B": Real(1.0, (1152, 6912, 26, 4, 1, 262144), GEMMA3 | {"sliding_window": 512}, 32768, {512: 22}),
    "Gemma 3 4B": Real(3.88, (2560, 10240, 34, 8, 4, 262208), GEMMA3_LARGE, 131072, {1024: 29}),
    "Gemma 3 12B": Real(11.77, (3840, 15360, 48, 16, 8, 262208), GEMMA3_LARGE, 131072, {1024: 40}),
    "Gemma 3 27B": Real(
        27.01,
        (5376, 21504, 62, 32, 16, 262208),
        GEMMA3_LARGE | {"head_dim": 128, "query_pre_attn_scalar": 168},
        131072,
        {1024: 52},
    ),
    "Gemma 4 E2B": Real(
        4.65,
        (1536, 6144, 35, 8, 1, 262144),
        GEMMA4 | {"layer_types": kinds(35, 5), "num_kv_shared_layers": 20, "use_double_wide_mlp": True},
        131072,
        {512: 28},
    ),
    "Gemma 4 E4B": Real(
        7.52,
        (2560, 10240, 42, 8, 2, 262144),
        GEMMA4 | {"layer_types": kinds(42, 6), "num_kv_shared_layers": 18},
        131072,
        {512: 35},
    ),
    "Gemma 4 26B-A4B": Real(
        25.2,
        (2816, 2112, 30, 16, 8, 262144),
        GEMMA4_LARGE
        | {"layer_types": kinds(30, 6), "num_global_key_value_heads": 2, "enable_moe_block": True}
        | {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
        262144,
        {1024: 25},
    ),
    "Gemma 4 31B": Real(
        30.7,
        (5376, 21504, 60, 32, 16, 262144),
        GEMMA4_LARGE | {"layer_types": kinds(60, 6), "num_global_key_value_heads": 4},
        262144,
        {1024: 50},
    ),
    "gpt-oss 20B": Real(20.91, (2880, 2880, 24, 64, 8, 201088), GPT_OSS | {"num_local_experts": 32}, 131072, {128: 12}),
    "gpt-oss 120B": Real(
        116.8, (2880, 2880, 36, 64, 8, 201088), GPT_OSS | {"num_local_experts": 128}, 131072, {128: 18}
    ),
    "GLM-4.5 Air": Real(
        106.9,
        (4096, 10944, 46, 96, 8, 151552),
        GLM4_MOE | {"n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
        131072,
    ),
    "GLM-4.5": Real(
        352.8,
        (5120, 12288, 92, 96, 8, 151552),
        GLM4_MOE
        | {"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3, "use_qk_norm": True},
        131072,
    ),
    "dots.llm1": Real(142.8, (4096, 10944, 62, 32, 32, 152064), DOTS1, 32768),
    "ERNIE 4.5 21B-A3B": Real(21.83, (2560, 12288, 28, 20, 4, 103424), ERNIE | {"moe_layer_start_index": 1}, 131072),
    "Granite 3.1 1B-A400M": Real(1.334, (1024, 512, 24, 16, 8, 49155), GRANITE_MOE | {"num_local_experts": 32}, 131072),
    "Granite 3.1 3B-A800M": Real(3.3, (1536, 512, 32, 24, 8, 49155), GRANITE_MOE | {"num_local_experts": 40}, 131072),
    "OLMoE 1B-7B": Real(
        6.919, (2048, 1024, 16, 16, 16, 50304), of("Olmoe", num_experts=64, num_experts_per_tok=8), 4096
    ),
    "Phi-3-mini 4k": Real(3.821, (3072, 8192, 32, 32, 32, 32064), PHI3, 4096, {2047: 32}),
    "Phi-3-mini 128k": Real(3.821, (3072, 8192, 32, 32, 32, 32064), PHI3_LONG, 131072),
    "Phi-3.5-mini": Real(3.821, (3072, 8192, 32, 32, 32, 32064), PHI3_LONG, 131072),
    "Phi-4": Real(
        14.66, (5120, 17920, 40, 40, 10, 100352), PHI3 | {"sliding_window": None, "rope_theta": 250000}, 16384
    ),
    "Phi-4-mini": Real(
        3.836, (3072, 8192, 32, 24, 8, 200064), PHI3_LONG | TIED | {"partial_rotary_factor": 0.75}, 131072
    ),
    "SmolLM3": Real(3.075, (2048, 11008, 36, 16, 4, 128256), SMOLLM3, 65536, num_unrotated=9),
    "OLMo 2 1B": Real(1.485, (2048, 8192, 16, 16, 16, 100352), OLMO2, 4096),
    "OLMo 2 7B": Real(7.299, (4096, 11008, 32, 32, 32, 100352), OLMO2, 4096),
    "OLMo 2 13B": Real(13.72, (5120, 13824, 40, 40, 40, 100352), OLMO2, 4096),
    "OLMo 2 32B": Real(32.23, (5120, 27648, 64, 40, 8, 100352), OLMO2, 4096),
    "OLMo 3 7B": Real(
        7.298, (4096, 11008, 32, 32, 32, 100278), OLMO3 | {"layer_types": kinds(32, 4)}, 65536, {4096: 24}
    ),
    "OLMo 3 32B": Real(
        32.23, (5120, 27648, 64, 40, 8, 100278), OLMO3 | {"layer_types": kinds(64, 4)}, 65536, {4096: 48}
    ),
    "Granite 3.3 2B": Real(2.534, (2048, 8192, 40, 32, 8, 49159), GRANITE3, 131072),
    "Granite 3.3 8B": Real(
        8.171,
        (4096, 12800, 40, 32, 8, 49159),
        GRANITE3 | {"attention_multiplier": 0.0078125, "logits_scaling": 16.0},
        131072,
    ),
    "Granite 4 micro": Real(
        3.403,
        (2560, 8192, 40, 40, 8, 100352),
        GRANITE4 | {"layer_types": ["attention"] * 40, "shared_intermediate_size": 8192},
        131072,
    ),
    "Granite 4 350M": Real(
        0.352,
        (1024, 2048, 28, 16, 4, 100352),
        GRANITE4 | {"layer_types": ["attention"] * 28, "shared_intermediate_size": 2048},
        32768,
    ),
    "Granite 4 1B": Real(
        1.632,
        (2048, 4096, 40, 16, 4, 100352),
        GRANITE4 | {"layer_types": ["attention"] * 40, "shared_intermediate_size": 4096},
        131072,
    ),
    "GLM-4 9B 0414": Real(9.400, (4096, 13696, 40, 32, 2, 151552), GLM4, 32768),
    "GLM-Z1 9B 0414": Real(9.400, (4096, 13696, 40, 32, 2, 151552), GLM4, 32768),
    "GLM-4 32B 0414": Real(32.57, (6144, 23040, 61, 48, 2, 151552), GLM4 | {"attention_bias": False}, 32768),
    "Command R7B": Real(8.028, (4096, 14336, 32, 32, 8, 256000), COHERE2, 132096, {4096: 24}, num_unrotated=8),
    "Command A": Real(111.1, (12288, 36864, 64, 96, 8, 256000), COHERE2, 131072, {4096: 48}, num_unrotated=16),
    "EXAONE 4 1.2B": Real(
        1.279,
        (2048, 4096, 30, 32, 8, 102400),
        EXAONE4 | TIED | {"head_dim": 64, "layer_types": kinds(30, 1)},
        65536,
    ),
    "EXAONE 4 32B": Real(
        32.00,
        (5120, 27392, 64, 40, 8, 102400),
        EXAONE4
        | {"head_dim": 128, "layer_types": kinds(64, 4), "sliding_window": 4096, "sliding_window_pattern": "LLLG"},
        131072,
        {4096: 48},
        num_unrotated=16,
    ),
    "DeepSeek V2 Lite": Real(15.71, (2048, 10944, 27, 16, 16, 102400), DEEPSEEK_V2, 163840),
    "DeepSeek V3 and R1": Real(671.0, (7168, 18432, 61, 128, 128, 129280), DEEPSEEK_V3, 163840),
    "DeepSeek V3.2": Real(
        671.0, (7168, 18432, 61, 128, 128, 129280), DEEPSEEK_V3 | {"architectures": ["DeepseekV32ForCausalLM"]}, 2048
    ),
    "Kimi K2, text of K2.5": Real(1026.4, (7168, 18432, 61, 64, 64, 163840), KIMI_K2, 131072),
    "GLM-4.7-Flash": Real(29.94, (2048, 10240, 47, 20, 20, 154880), GLM4_LITE, 202752),
    "GLM-5": Real(743.2, (6144, 12288, 78, 64, 64, 154880), GLM_5, 2048),
    "MiniCPM3 4B": Real(4.074, (2560, 6400, 62, 40, 40, 73448), MINICPM3, 32768),
    "Mistral Small 4": Real(119.0, (4096, 12288, 36, 32, 32, 131072), of("Mistral4"), 262144),
    "Youtu-LLM 2B": Real(1.96, (2048, 6144, 32, 16, 16, 128256), of("Youtu", **TIED), 131072),
}

REFUSED: dict[str, tuple[Fields, str]] = {
    "Nemotron 3 Super": (
        NEMOTRON_H
        | {"hidden_size": 4096, "hybrid_override_pattern": "ME", "vocab_size": 131072, "moe_latent_size": 1024},
        "moe_latent_size is 1024: supported are experts that read the residual stream itself",
    ),
    "Qwen3.5 without gates": (
        QWEN3_5 | dict(zip(SIZE_FIELDS, (1024, 3584, 24, 8, 2, 248320), strict=True)) | {"attn_output_gate": False},
        "attn_output_gate is false",
    ),
    "Aya Expanse 8B": (of("Cohere"), "names CohereForCausalLM, which is not supported"),
    "Gemma 2B": (of("Gemma"), "names GemmaForCausalLM, which is not supported"),
    "Phi-3-small": (of("Phi3Small"), "names Phi3SmallForCausalLM, which is not supported"),
    "Phi-3.5-MoE": (of("PhiMoE"), "names PhiMoEForCausalLM, which is not supported"),
    "DeepSeek-VL": (
        {"architectures": ["DeepseekVLForConditionalGeneration"]},
        "a model of images and text.*not supported",
    ),
}
"""Popular checkpoints that cannot be served, and the reason that is given."""
