"""InternVL: InternViT with a class token and layer scales, a pixel shuffle, and an MLP."""

from dataclasses import replace
from typing import Literal

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import LayerDescription, NormDescription
from scheduler_proc.computing.model.families.bert import describe_attention
from scheduler_proc.computing.vision.description import (
    CLASS_TOKEN,
    PATCHES,
    POSITIONS,
    POST_NORM,
    ProjectorDescription,
    TowerDescription,
)
from scheduler_proc.computing.vision.family import Exact, Names, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import (
    MAX_MERGE,
    MAX_PATCH,
    MAX_SIDE,
    describe_mlp,
    find_section,
    projector_activation,
    square_side,
    text_width,
)
from scheduler_proc.computing.vision.view_tower import ViewTower

OLD_FIELDS = {"use_qk_norm": "qk_normalization", "attention_bias": "qkv_bias"}
"""The fields of config.json with InternVL's own code (`trust_remote_code`)."""


def describe(config: HfConfig) -> TowerDescription:
    vision = find_section(config, "vision_config")
    vision = vision.with_old_names({old: new for new, old in OLD_FIELDS.items()})
    size, row_width, num_layers = vision.count("hidden_size"), text_width(config), vision.num_layers
    kinds: dict[str, Literal["layer", "rms"]] = {"layer_norm": "layer", "rms_norm": "rms"}
    kind = kinds[vision.choice("norm_type", list(kinds), "layer_norm")]
    norm = NormDescription(kind=kind, size=size, eps=vision.number("layer_norm_eps", 1e-6))
    scale = NormDescription(kind="scale", size=size)
    has_qk_norm, has_bias = vision.flag("use_qk_norm", False), vision.flag("attention_bias", False)
    attention = replace(
        describe_attention(vision, has_bias=True),
        has_qkv_bias=has_bias,
        qk_norm=NormDescription(kind="rms", size=size // vision.count("num_attention_heads"), eps=1e-6)
        if has_qk_norm
        else None,
        norms_whole_qk=has_qk_norm,
    )
    layer = LayerDescription(
        mixers=(attention,),
        mlp=describe_mlp(vision, "gelu"),
        attention_norm=norm,
        attention_out_norm=scale,
        mlp_norm=norm,
        mlp_out_norm=scale,
    )
    side = _side(config)
    num_merged = size * side**2
    projector = ProjectorDescription(
        sizes=(num_merged, row_width, row_width),
        norm=NormDescription(kind="layer", size=num_merged, eps=1e-5),
        activation=projector_activation(config),
    )
    patch_size = square_side(vision, "patch_size", MAX_PATCH)
    return TowerDescription(
        hidden_size=size,
        layers=(layer,) * num_layers,
        patch_size=patch_size,
        kept_after=(num_layers,),
        num_positions=(square_side(vision, "image_size", MAX_SIDE) // patch_size) ** 2 + 1,
        has_class_token=True,
        post_norm=None if vision.flag("use_mean_pooling", True) else replace(norm, kind="layer"),
        projectors=(projector,),
        row_width=row_width,
        merged_side=side,
    )


def _side(config: HfConfig) -> int:
    """Returns the side of the squares of patches that become one row."""
    side = config.optional_count("scale_factor") or round(1 / config.number("downsample_ratio", 0.5))
    if side > MAX_MERGE:
        raise config.refuse("downsample_ratio", 1 / side, f"it must be at least 1/{MAX_MERGE}")
    return side


def _names(model: str) -> Names:
    """Returns the names in checkpoints of transformers' own code."""
    embeddings, projector = f"{model}vision_tower.embeddings", f"{model}multi_modal_projector"
    return {
        PATCHES: f"{embeddings}.patch_embeddings.projection",
        POSITIONS: Exact(f"{embeddings}.position_embeddings", "reshaped"),
        CLASS_TOKEN: Exact(f"{embeddings}.cls_token", "reshaped"),
        POST_NORM: f"{model}vision_tower.layernorm",
        "layers": f"{model}vision_tower.encoder.layer.{{}}.",
        "qkv": [f"attention.{part}_proj" for part in "qkv"],
        "query_norm": "attention.q_norm",
        "key_norm": "attention.k_norm",
        "attention_out": "attention.projection_layer",
        "attention_norm": "layernorm_before",
        "attention_out_norm": Exact("lambda_1"),
        "mlp_norm": "layernorm_after",
        "mlp_out_norm": Exact("lambda_2"),
        "mlp_in": "mlp.fc1",
        "mlp_out": "mlp.fc2",
        "projector.norm": f"{projector}.layer_norm",
        "projector.0": f"{projector}.linear_1",
        "projector.1": f"{projector}.linear_2",
    }


OLD_NAMES: Names = {
    PATCHES: "vision_model.embeddings.patch_embedding",
    POSITIONS: Exact("vision_model.embeddings.position_embedding", "reshaped"),
    CLASS_TOKEN: Exact("vision_model.embeddings.class_embedding", "reshaped"),
    "layers": "vision_model.encoder.layers.{}.",
    "qkv": "attn.qkv",
    "query_norm": "attn.q_norm",
    "key_norm": "attn.k_norm",
    "attention_out": "attn.proj",
    "attention_norm": "norm1",
    "attention_out_norm": Exact("ls1"),
    "mlp_norm": "norm2",
    "mlp_out_norm": Exact("ls2"),
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
    "projector.norm": "mlp1.0",
    "projector.0": "mlp1.1",
    "projector.1": "mlp1.3",
}
"""The names in checkpoints of InternVL's own code."""

MLP = "mm.model.mlp"

FAMILY = TowerFamily(
    describe=describe,
    namings=(
        _names("model."),
        _names(""),
        OLD_NAMES,
        MMPROJ_NAMES | {"projector.norm": f"{MLP}.0", "projector.0": f"{MLP}.1", "projector.1": f"{MLP}.3"},
    ),
    make=ViewTower,
)
