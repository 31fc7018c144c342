"""SigLIP and CLIP: the vision transformers of several families, from config.json's `vision_config`."""

from typing import Any

from messages.errors import BootError
from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.description import DenseMlpDescription, LayerDescription, NormDescription
from scheduler_proc.computing.model.families.gpt2 import ACTIVATIONS
from scheduler_proc.computing.vision.description import PATCHES, POSITIONS, POST_NORM
from scheduler_proc.computing.vision.family import Exact, Names


def find_section(config: HfConfig, name: str) -> HfConfig:
    section = config.section(name)
    if section is None:
        raise BootError(f"config.json: {name} is missing")
    return section


def describe_siglip(vision: HfConfig, num_layers: int | None = None) -> dict[str, Any]:
    """Returns the fields of a `TowerDescription` but projectors, with the first `num_layers` layers or all of them."""
    size, num_heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    if size % num_heads:
        raise vision.refuse("hidden_size", size, f"it must be a multiple of {num_heads} heads")
    image_size, patch_size = vision.count("image_size", most=1 << 14), vision.count("patch_size", most=256)
    activation = vision.choice("hidden_act", list(ACTIVATIONS), "gelu_pytorch_tanh")
    norm = NormDescription(kind="layer", size=size, eps=vision.number("layer_norm_eps", 1e-6))
    attention = EncoderAttentionDescription(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=size // num_heads,
        scale=(size // num_heads) ** -0.5,
        has_qkv_bias=True,
        has_out_bias=True,
    )
    mlp = DenseMlpDescription(size=vision.count("intermediate_size"), activation=ACTIVATIONS[activation], has_bias=True)
    layer = LayerDescription(mixers=(attention,), mlp=mlp, attention_norm=norm, mlp_norm=norm)
    num_all = vision.count("num_hidden_layers", most=MAX_LAYERS)
    num_layers = num_all if num_layers is None else num_layers
    return {
        "hidden_size": size,
        "layers": (layer,) * num_layers,
        "patch_size": patch_size,
        "kept_after": (num_layers,),
        "num_positions": (image_size // patch_size) ** 2,
        "post_norm": norm,
    }


def siglip_names(prefix: str, **others: str | Exact) -> Names:
    """Returns the names of tensors that begin with `prefix`, and those of `others`, by our names with `__` for `.`."""
    embeddings = f"{prefix}embeddings"
    return {
        PATCHES: f"{embeddings}.patch_embedding",
        POSITIONS: Exact(f"{embeddings}.position_embedding.weight"),
        POST_NORM: f"{prefix}post_layernorm",
        "layers": f"{prefix}encoder.layers.{{}}.",
        "qkv": [f"self_attn.{part}_proj" for part in "qkv"],
        "attention_out": "self_attn.out_proj",
        "attention_norm": "layer_norm1",
        "mlp_norm": "layer_norm2",
        "mlp_in": "mlp.fc1",
        "mlp_out": "mlp.fc2",
    } | {name.replace("__", "."): theirs for name, theirs in others.items()}
