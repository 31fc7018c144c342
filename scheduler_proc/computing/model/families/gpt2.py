"""GPT-2: layer norms, learned positions, and linears that the checkpoint holds transposed (`Conv1D`)."""

import re
from typing import Literal

from messages.errors import BootError
from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.families.family import Family, Source, embedding_source, head_sources

ACTIVATIONS: dict[str, Literal["gelu_tanh", "gelu"]] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
}


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    hidden_size, num_heads = hf_config.count("n_embd"), hf_config.count("n_head")
    num_positions = hf_config.count("n_positions")
    activation = hf_config.choice("activation_function", list(ACTIVATIONS), "gelu_new")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        hf_config.refuse_flag(name, "such a GPT-2 is not supported")
    if hidden_size % num_heads != 0:
        raise hf_config.refuse("n_embd", hidden_size, f"it must be a multiple of n_head ({num_heads})")
    if max_model_len > num_positions:
        raise BootError(f"--max-model-len {max_model_len}: this model has {num_positions} positions (n_positions)")
    head_dim = hidden_size // num_heads
    norm = NormDescription(kind="layer", size=hidden_size, eps=hf_config.number("layer_norm_epsilon", 1e-5))
    attention = AttentionDescription(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5 if hf_config.flag("scale_attn_weights", True) else 1.0,
        has_qkv_bias=True,
        has_out_bias=True,
    )
    mlp_size = hf_config.optional_count("n_inner") or 4 * hidden_size
    mlp = DenseMlpDescription(size=mlp_size, activation=ACTIVATIONS[activation], has_bias=True)
    layer = LayerDescription(attention_norm=norm, mixers=(attention,), mlp_norm=norm, mlp=mlp)
    return ModelDescription(
        vocab_size=hf_config.count("vocab_size"),
        hidden_size=hidden_size,
        layers=(layer,) * hf_config.count("n_layer", most=MAX_LAYERS),
        final_norm=norm,
        num_positions=num_positions,
        has_tied_head=hf_config.flag("tie_word_embeddings", True),
    )


def list_sources(model: ModelDescription) -> list[Source]:
    hidden = model.hidden_size
    sources = [
        embedding_source("transformer.wte.weight", model),
        Source("transformer.wpe.weight", (model.num_positions, hidden), "position_embedding"),
    ]
    for index, description in enumerate(model.layers):
        assert isinstance(description.mlp, DenseMlpDescription)
        block, layer = f"transformer.h.{index}", f"layers.{index}"
        sources += _norm(f"{block}.ln_1", f"{layer}.attention_norm", hidden)
        sources += _conv1d(f"{block}.attn.c_attn", f"{layer}.qkv", hidden, 3 * hidden)
        sources += _conv1d(f"{block}.attn.c_proj", f"{layer}.attention_out", hidden, hidden)
        sources += _norm(f"{block}.ln_2", f"{layer}.mlp_norm", hidden)
        sources += _conv1d(f"{block}.mlp.c_fc", f"{layer}.mlp_in", hidden, description.mlp.size)
        sources += _conv1d(f"{block}.mlp.c_proj", f"{layer}.mlp_out", description.mlp.size, hidden)
    sources += _norm("transformer.ln_f", "final_norm", hidden)
    return sources + head_sources(model)


def _norm(name: str, target: str, size: int) -> list[Source]:
    return [Source(f"{name}.{part}", (size,), f"{target}.{part}") for part in ("weight", "bias")]


def _conv1d(name: str, target: str, num_in: int, num_out: int) -> list[Source]:
    return [
        Source(f"{name}.weight", (num_in, num_out), f"{target}.weight", change="transposed"),
        Source(f"{name}.bias", (num_out,), f"{target}.bias"),
    ]


FAMILY = Family(
    architectures=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    describe=describe,
    list_sources=list_sources,
    prefix="transformer.",
    ignored=re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight"),
)
