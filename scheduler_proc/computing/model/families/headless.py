"""Models without a language-model head: for vectors, or with a head that classifies."""

import re
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.description import (
    CLASSIFIER_DENSE,
    CLASSIFIER_NORM,
    CLASSIFIER_OUT,
    ClassifierDescription,
    ModelDescription,
)
from scheduler_proc.computing.model.families.family import Family, Source, linear_sources

HEADLESS = re.compile(r"(\w+?)(Text)?(Model|ForSequenceClassification)")
"""Names of architectures of decoders without their head. Encoders are listed by their families."""


def name_with_head(architecture: str) -> str:
    """Returns the name of the same decoder with its head, empty if this is not one without."""
    match = HEADLESS.fullmatch(architecture)
    return f"{match[1]}ForCausalLM" if match else ""


def behead(family: Family) -> Family:
    """Returns the family of the same decoders without their head, which the table of tokens then stands for."""

    def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
        model = family.describe(hf_config, max_model_len)
        classifier = ClassifierDescription(num_labels=count_labels(hf_config), has_bias=False)
        return replace(model, has_tied_head=True, classifier=classifier if classifies(hf_config) else None)

    def list_sources(model: ModelDescription) -> list[Source]:
        return family.list_sources(model) + classifier_sources(model, out="score")

    return replace(family, describe=describe, list_sources=list_sources)


def bidirectional(model: ModelDescription) -> ModelDescription:
    """Returns the encoder with the same layers."""
    layers = (
        replace(layer, mixers=tuple(EncoderAttentionDescription(**vars(attention)) for attention in layer.mixers))
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))


def classifies(hf_config: HfConfig) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in hf_config.texts("architectures"))


def count_labels(hf_config: HfConfig) -> int:
    named = hf_config.section("id2label")
    return len(named.names()) if named is not None and named.names() else hf_config.count("num_labels", 2)


def classifier_sources(model: ModelDescription, out: str, dense: str = "", norm: str = "") -> list[Source]:
    """Returns the sources of the classification head, if there is one, by the names of its parts."""
    head, size = model.classifier, model.hidden_size
    if head is None:
        return []
    sources = linear_sources(out, CLASSIFIER_OUT, head.num_labels, size, head.has_bias)
    if head.activation is not None:
        sources += linear_sources(dense, CLASSIFIER_DENSE, size, size, head.has_dense_bias)
    if head.norm is not None:
        sources += norm_sources(norm, CLASSIFIER_NORM, size, has_bias=head.norm.has_bias)
    return sources


def norm_sources(name: str, target: str, size: int, *, has_bias: bool = True) -> list[Source]:
    """Returns the sources of a layer norm, whose parts old checkpoints call gamma and beta."""
    parts = {"weight": "gamma", "bias": "beta"} if has_bias else {"weight": "gamma"}
    return [
        Source(f"{name}.{part}", (size,), f"{target}.{part}", others=(f"{name}.{old}",)) for part, old in parts.items()
    ]
