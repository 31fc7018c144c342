"""Writes tiny models in GGUF by llama.cpp's own converter, and the logits that transformers computes with them.

Run from the repository's root, with `gguf` installed: python -m tests.scheduler_proc.computing.loading.converted_models
FOLDER, where FOLDER has llama.cpp's `conversion` package.
"""

import importlib
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.checkpoints import build_checkpoint
from tests.scheduler_proc.computing.model.families.gpt_oss_models import build_gpt_oss

FOLDER = Path(__file__).with_name("converted")
VOCAB_SIZE = 64
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 9, 7]
LLAMA_SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "vocab_size": VOCAB_SIZE}
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "vocab_size": VOCAB_SIZE} | {
    "sliding_window": 5,
    "sliding_window_pattern": 6,
    "rope_local_base_freq": 1e4,
}
GPT_OSS_SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE} | {
    "num_local_experts": 3,
    "head_dim": 16,
    "sliding_window": 5,
    "swiglu_limit": 7.0,
}
GEMMA4 = {**LLAMA_SIZES, "hidden_size": 16, "head_dim": 8, "global_head_dim": 16, "sliding_window": 5}
HYBRID = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 3,
    "head_dim": 16,
} | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 4,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 16,
}
MIXERS = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": VOCAB_SIZE}
EXACT_FACTORS = {
    "attention_in_multiplier": 2.0,
    "attention_out_multiplier": 0.5,
    "key_multiplier": 0.5,
    "embedding_multiplier": 4.0,
    "lm_head_multiplier": 0.5,
    "ssm_in_multiplier": 2.0,
    "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.5, 0.25, 1.0, 2.0, 4.0],
    "mlp_multipliers": [0.5, 2.0],
}
"""The converter multiplies the float16 weights of Falcon-H1."""

LATENT_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
LATENTS = {
    **MIXERS,
    "num_hidden_layers": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
LATENT_EXPERTS = {**LATENTS, "n_routed_experts": 4, "moe_intermediate_size": 8, "scoring_func": "sigmoid"}
INDEXER = {"index_n_heads": 2, "index_head_dim": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
SHORT_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 96}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-biases", {**LLAMA_SIZES, "tie_word_embeddings": True}),
    "qwen3": ("qwen3-gqa-tied", {**LLAMA_SIZES, "head_dim": 8}),
    "phi3": ("phi3-long", {**LLAMA_SIZES, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "granite": ("granite", LLAMA_SIZES),
    "glm4": ("glm4", {**LLAMA_SIZES, "head_dim": 16}),
    "ministral3": ("ministral3", {**LLAMA_SIZES, "head_dim": 8}),
    "gemma3": ("gemma3", SMALL | {"num_hidden_layers": 6, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma4-shared-kv": (
        "gemma4-shared-kv",
        GEMMA4
        | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCAB_SIZE},
    ),
    "gemma4-experts": (
        "gemma4-experts",
        GEMMA4 | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "cohere2": ("cohere2", SMALL | {"sliding_window_pattern": 4, "rotary_pct": 1.0}),
    "gpt2": ("gpt2", {"n_embd": 24, "n_layer": 1, "n_head": 3, "vocab_size": VOCAB_SIZE, "n_positions": 16}),
    "mixtral": ("mixtral", LLAMA_SIZES),
    "qwen2moe": ("qwen2moe", LLAMA_SIZES),
    "qwen3moe": ("qwen3moe", LLAMA_SIZES),
    "qwen35": ("qwen3_5", HYBRID | {"linear_conv_kernel_dim": 4}),
    "qwen3next": ("qwen3-next", HYBRID | {"mlp_only_layers": []}),
    "lfm2moe": ("lfm2moe", {**MIXERS, "num_experts": 3, "moe_intermediate_size": 8, "routed_scaling_factor": 1.0}),
    "nemotron_h_moe": (
        "nemotron-h-experts",
        {**MIXERS, "mamba_num_heads": 4, "mamba_head_dim": 16, "head_dim": 8, "n_routed_experts": 3}
        | {"moe_intermediate_size": 8, "moe_shared_expert_intermediate_size": 16, "ssm_state_size": 8},
    ),
    "falcon-h1": (
        "falcon-h1",
        {**MIXERS, "num_hidden_layers": 1, "mamba_d_ssm": 32, "mamba_d_head": 4, "mamba_d_state": 8, "head_dim": 8}
        | EXACT_FACTORS,
    ),
    "deepseek2": ("deepseek-v3", {**LATENT_EXPERTS, "norm_topk_prob": True}),
    "deepseek2-yarn": (
        "deepseek-v2",
        {**LATENT_EXPERTS, "n_group": 1, "scoring_func": "softmax", "rope_parameters": LATENT_YARN},
    ),
    "glm4-moe-lite": ("glm4-moe-lite", {**LATENT_EXPERTS, "first_k_dense_replace": 1, "rope_interleave": True}),
    "deepseek2-dense": ("youtu", LATENTS),
    "deepseek32": ("deepseek-v32", {**LATENT_EXPERTS, **INDEXER, "norm_topk_prob": True}),
    "glm-dsa": ("glm-moe-dsa", {**LATENT_EXPERTS, **INDEXER}),
    "minicpm3": (
        "minicpm3",
        {**LATENTS, "v_head_dim": 8, "scale_emb": 12, "dim_model_base": 256}
        | {"rope_parameters": {**SHORT_ROPE, "short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0]}},
    ),
    "gpt_oss": ("gpt_oss", GPT_OSS_SIZES),
    "gpt_oss_mxfp4": ("gpt_oss", {**GPT_OSS_SIZES, "is_quantized": True}),
}


def convert(name: str, converter: Any) -> torch.Tensor:
    """Writes the model in GGUF and returns the logits of `PROMPT`."""
    variant, overrides = MODELS[name]
    with tempfile.TemporaryDirectory() as scratch:
        model_dir = Path(scratch)
        build = build_gpt_oss if variant == "gpt_oss" else partial(build_checkpoint, variant=variant)
        model: Any = build(model_dir, **overrides)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.half())  # the file has float16
            logits = model(torch.tensor([PROMPT])).logits[0]
        if not overrides.get("is_quantized"):
            model.save_pretrained(model_dir)
        if name.startswith("gemma"):  # for its number of tokens
            vocabulary = {"model": {"vocab": dict.fromkeys(map(str, range(VOCAB_SIZE)))}, "added_tokens": []}
            (model_dir / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        hparams: dict[str, Any] = converter.ModelBase.load_hparams(model_dir, False)
        architecture = converter.get_model_architecture(hparams, converter.ModelType.TEXT)
        gguf = importlib.import_module("gguf")
        model_class = converter.get_model_class(architecture)
        model_class.no_mtp = True
        converted = model_class(model_dir, gguf.LlamaFileType.MOSTLY_F16, FOLDER / f"{name}.gguf")
        converted.hparams.setdefault("n_ctx", model.config.max_position_embeddings)  # of GPT-2's old configurations
        getattr(converted, "impl", converted).set_vocab = lambda: None  # of Mistral 3, another writes the file
        converted.write()
    return logits


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    FOLDER.mkdir(exist_ok=True)
    converter = importlib.import_module("conversion")
    save_file({name: convert(name, converter) for name in MODELS}, FOLDER / "logits.safetensors")
