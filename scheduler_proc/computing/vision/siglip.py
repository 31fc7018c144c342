"""SigLIP and CLIP, the vision transformers of most families, from config.json's `vision_config`."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from kernels.operations.gelu import GeluKind
from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.blocks.dense_mlp import GELUS
from scheduler_proc.computing.model.description import DenseMlpDescription, LayerDescription, NormDescription
from scheduler_proc.computing.model.families.bert import describe_attention
from scheduler_proc.computing.model.families.family import Change
from scheduler_proc.computing.model.families.gpt2 import ACTIVATIONS
from scheduler_proc.computing.vision.description import CLASS_TOKEN, PATCHES, POSITIONS, POST_NORM, PRE_NORM
from scheduler_proc.computing.vision.family import Exact, Names

MAX_SIDE, MAX_PATCH, MAX_MERGE = 1 << 14, 256, 32
"""The maximum sides of views and patches, in pixels, and of the squares of patches that become one row."""


def find_section(config: HfConfig, *names: str) -> HfConfig:
    """Returns the first of these sections that config.json has."""
    found = next((section for name in names if (section := config.section(name)) is not None), None)
    if found is None:
        raise BootError(f"config.json: {names[0]} is missing")
    return found


def text_width(config: HfConfig) -> int:
    """Returns the hidden size of the decoder."""
    return find_section(config, "text_config", "llm_config").count("hidden_size")


def describe_mlp(vision: HfConfig, default_activation: str) -> DenseMlpDescription:
    activation = vision.choice("hidden_act", [*ACTIVATIONS, "quick_gelu"], default_activation)
    return DenseMlpDescription(
        size=vision.count("intermediate_size"),
        activation="quick_gelu" if activation == "quick_gelu" else ACTIVATIONS[activation],
        has_bias=True,
    )


def square_side(vision: HfConfig, name: str, most: int) -> int:
    """Returns the side of a square, for which config.json may have two numbers."""
    first, *others = vision.integers(name)
    if not 0 < first <= most or any(other != first for other in others):
        raise vision.refuse(name, [first, *others], f"supported are squares with sides of at most {most}")
    return first


def describe_siglip(vision: HfConfig, num_layers: int | None = None) -> dict[str, Any]:
    """Returns the fields of a `TowerDescription` but its projectors, with all layers or the first `num_layers`."""
    size = vision.count("hidden_size")
    image_size, patch_size = square_side(vision, "image_size", MAX_SIDE), square_side(vision, "patch_size", MAX_PATCH)
    norm = NormDescription(kind="layer", size=size, eps=vision.number("layer_norm_eps", 1e-6))
    layer = LayerDescription(
        mixers=(describe_attention(vision, has_bias=True),),
        mlp=describe_mlp(vision, "gelu_pytorch_tanh"),
        attention_norm=norm,
        mlp_norm=norm,
    )
    num_layers = vision.num_layers if num_layers is None else num_layers
    return {
        "hidden_size": size,
        "layers": (layer,) * num_layers,
        "patch_size": patch_size,
        "kept_after": (num_layers,),
        "num_positions": (image_size // patch_size) ** 2,
        "post_norm": norm,
    }


def projector_activation(config: HfConfig) -> GeluKind:
    return GELUS[ACTIVATIONS[config.choice("projector_hidden_act", list(ACTIVATIONS), "gelu")]]


def siglip_names(prefix: str, others: Mapping[str, str | Exact]) -> Names:
    """Returns the names of tensors that begin with `prefix`, and `others`."""
    embeddings = f"{prefix}embeddings"
    return {
        PATCHES: f"{embeddings}.patch_embedding",
        POSITIONS: Exact(f"{embeddings}.position_embedding.weight"),
        CLASS_TOKEN: Exact(f"{embeddings}.class_embedding", "reshaped"),
        PRE_NORM: f"{prefix}pre_layrnorm",
        POST_NORM: f"{prefix}post_layernorm",
        "layers": f"{prefix}encoder.layers.{{}}.",
        "qkv": [f"self_attn.{part}_proj" for part in "qkv"],
        "attention_out": "self_attn.out_proj",
        "attention_norm": "layer_norm1",
        "mlp_norm": "layer_norm2",
        "mlp_in": "mlp.fc1",
        "mlp_out": "mlp.fc2",
    } | dict(others)


def tower_names(others: Mapping[str, str | Exact], patches: Change | None = None) -> tuple[Names, ...]:
    """Returns the namings of checkpoints old and new, in which the tower is `vision_tower`.

    `patches`: how the weights of patches differ from ours.
    """
    found: list[Names] = []
    for model, inner in product(("", "model."), ("", "vision_model.")):
        own = {
            ours: f"{model}{theirs}" if isinstance(theirs, str) else theirs._replace(name=f"{model}{theirs.name}")
            for ours, theirs in others.items()
        }
        prefix = f"{model}vision_tower.{inner}"
        if patches is not None:
            own[f"{PATCHES}.weight"] = Exact(f"{prefix}embeddings.patch_embedding.weight", patches)
        found.append(siglip_names(prefix, own))
    return tuple(found)
