"""BERT: an encoder with learned positions, whose norms replace the residual stream after each addition."""

import re
from dataclasses import replace
from functools import partial

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.description import (
    ClassifierDescription,
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.model.families.family import Family, Source, embedding_source, linear_sources
from scheduler_proc.computing.model.families.gpt2 import ACTIVATIONS
from scheduler_proc.computing.model.families.headless import (
    classifier_sources,
    classifies,
    count_labels,
    norm_sources,
)

TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification")
"""The heads of other tasks yield neither vectors nor labels of a text."""


def describe(
    hf_config: HfConfig, max_model_len: int, *, num_unused: int = 0, default_positions: int = 512, num_types: int = 2
) -> ModelDescription:
    """`num_unused`: rows at the beginning of the table of positions that no token uses."""
    for name in ("is_decoder", "add_cross_attention"):
        hf_config.refuse_flag(name, "only encoders of this kind are supported")
    hf_config.choice("position_embedding_type", ["absolute"], "absolute")
    attention, hidden_size = describe_attention(hf_config, has_bias=True), hf_config.count("hidden_size")
    num_positions = hf_config.count("max_position_embeddings", default_positions)
    if max_model_len > num_positions - num_unused:
        raise BootError(f"--max-model-len {max_model_len}: this model has {num_positions - num_unused} positions")
    activation = hf_config.choice("hidden_act", list(ACTIVATIONS), "gelu")
    norm = NormDescription(
        kind="layer", size=hidden_size, eps=hf_config.number("layer_norm_eps", 1e-12), replaces_stream=True
    )
    mlp = DenseMlpDescription(
        size=hf_config.count("intermediate_size"), activation=ACTIVATIONS[activation], has_bias=True
    )
    layer = LayerDescription(mixers=(attention,), mlp=mlp, attention_norm=norm, mlp_norm=norm)
    classifier = ClassifierDescription(num_labels=count_labels(hf_config), activation="tanh")
    return ModelDescription(
        vocab_size=hf_config.count("vocab_size"),
        hidden_size=hidden_size,
        layers=(layer,) * hf_config.num_layers,
        final_norm=replace(norm, replaces_stream=False),
        num_positions=num_positions,
        num_unused_positions=num_unused,
        num_token_types=hf_config.count("type_vocab_size", num_types, least=0),
        classifier=classifier if classifies(hf_config) else None,
        has_tied_head=True,  # there is none: only logits of a warm-up step would need it
    )


def describe_attention(
    hf_config: HfConfig, *, has_bias: bool, heads: str = "num_attention_heads"
) -> EncoderAttentionDescription:
    """Returns the attention of an encoder whose heads share the hidden size; `heads` is the field with their number."""
    hidden_size, num_heads = hf_config.count("hidden_size"), hf_config.count(heads)
    if hidden_size % num_heads:
        raise hf_config.refuse("hidden_size", hidden_size, f"it must be a multiple of {num_heads} heads")
    return EncoderAttentionDescription(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        scale=(hidden_size // num_heads) ** -0.5,
        has_qkv_bias=has_bias,
        has_out_bias=has_bias,
    )


def list_sources(model: ModelDescription, prefix: str, classifier_out: str, classifier_dense: str) -> list[Source]:
    """The norm of each addition is, in our terms, the one before the next block."""
    hidden, embeddings = model.hidden_size, f"{prefix}embeddings"
    sources = [
        embedding_source(f"{embeddings}.word_embeddings.weight", model),
        Source(f"{embeddings}.position_embeddings.weight", (model.num_positions, hidden), "position_embedding"),
    ]
    if model.num_token_types:
        shape = model.num_token_types, hidden
        sources.append(Source(f"{embeddings}.token_type_embeddings.weight", shape, "token_type_embedding"))
    norm_before = f"{embeddings}.LayerNorm"
    for index, layer in enumerate(model.layers):
        assert isinstance(layer.mlp, DenseMlpDescription)
        block, ours, size = f"{prefix}encoder.layer.{index}", f"layers.{index}", layer.mlp.size
        for part, name in enumerate(("query", "key", "value")):
            sources += linear_sources(
                f"{block}.attention.self.{name}", f"{ours}.qkv", hidden, hidden, has_bias=True, first_row=part * hidden
            )
        sources += [
            *norm_sources(norm_before, f"{ours}.attention_norm", hidden),
            *linear_sources(f"{block}.attention.output.dense", f"{ours}.attention_out", hidden, hidden, has_bias=True),
            *norm_sources(f"{block}.attention.output.LayerNorm", f"{ours}.mlp_norm", hidden),
            *linear_sources(f"{block}.intermediate.dense", f"{ours}.mlp_in", size, hidden, has_bias=True),
            *linear_sources(f"{block}.output.dense", f"{ours}.mlp_out", hidden, size, has_bias=True),
        ]
        norm_before = f"{block}.output.LayerNorm"
    sources += norm_sources(norm_before, "final_norm", hidden)
    return sources + classifier_sources(model, classifier_out, classifier_dense)


FAMILY = Family(
    architectures=tuple(f"Bert{task}" for task in TASKS),
    model_types=("bert",),
    describe=describe,
    list_sources=partial(
        list_sources, prefix="bert.", classifier_out="classifier", classifier_dense="bert.pooler.dense"
    ),
    prefix="bert.",
    ignored=re.compile(r"(bert\.)?(embeddings\.position_ids|pooler\..*)|cls\..*"),
)
