"""Pixtral, and Mistral 3 and its successors, which merge squares of patches.

Shape legend: T patches, E embedding size, N squares of patches that become rows.
"""

from typing import Literal

from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, LayerDescription, NormDescription
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.axial import AxialTower, describe_axial
from scheduler_proc.computing.vision.description import (
    PATCHES,
    POST_NORM,
    PRE_NORM,
    ProjectorDescription,
    TowerDescription,
)
from scheduler_proc.computing.vision.family import Names, Rotated, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import find_section
from scheduler_proc.computing.vision.view_tower import Grid, shuffle_pixels

ACTIVATIONS: dict[str, Literal["silu_gated", "gelu_gated"]] = {"silu": "silu_gated", "gelu": "gelu_gated"}


def describe(config: HfConfig) -> TowerDescription:
    vision, text = find_section(config, "vision_config"), find_section(config, "text_config")
    size, row_width = vision.count("hidden_size"), text.count("hidden_size")
    side = config.count("spatial_merge_size", 1, most=16)  # only models that merge patches have the field
    norm = NormDescription(kind="rms", size=size, eps=1e-5)
    attention = describe_axial(vision, has_bias=False)
    activation = ACTIVATIONS[vision.choice("hidden_act", list(ACTIVATIONS), "gelu")]
    mlp = DenseMlpDescription(size=vision.count("intermediate_size"), activation=activation)
    layer = LayerDescription(mixers=(attention,), mlp=mlp, attention_norm=norm, mlp_norm=norm)
    num_layers = vision.num_layers
    config.choice("vision_feature_layer", [-1, num_layers], -1)
    config.choice("projector_hidden_act", ["gelu"], "gelu")
    has_bias = config.flag("multimodal_projector_bias", side == 1)
    projector = ProjectorDescription(sizes=(size, row_width, row_width), has_bias=has_bias)
    merger = ProjectorDescription(name="merger", sizes=(size * side**2, size), has_bias=False)
    return TowerDescription(
        hidden_size=size,
        layers=(layer,) * num_layers,
        patch_size=vision.count("patch_size", most=256),
        kept_after=(num_layers,),
        projectors=(merger, projector) if side > 1 else (projector,),
        row_width=row_width,
        merged_side=side,
        has_patch_bias=False,
        pre_norm=norm,
        post_norm=NormDescription(kind="rms", size=size, eps=text.number("rms_norm_eps", 1e-5)) if side > 1 else None,
    )


class PixtralTower(AxialTower):
    has_own_columns = True

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        """Returns the patches of each square, [N, E * side²]: the first value of each, then the second, and so on."""
        patches_NSE = shuffle_pixels(hidden_TE, grid, self._side).unflatten(1, (self._side**2, -1))
        return patches_NSE.transpose(1, 2).flatten(1)

    def _project(self, merged: list[Tensor], rows: StepRows) -> Tensor:
        (x_NM,) = merged
        for projector in self._projectors:
            x_NM = projector(x_NM, rows)
        return x_NM


def _names(prefix: str) -> Names:
    tower, projector = f"{prefix}vision_tower.", f"{prefix}multi_modal_projector."
    return {
        PATCHES: f"{tower}patch_conv",
        PRE_NORM: f"{tower}ln_pre",
        "layers": f"{tower}transformer.layers.{{}}.",
        "qkv": [f"attention.{part}_proj" for part in "qkv"],
        "attention_out": "attention.o_proj",
        "attention_norm": "attention_norm",
        "mlp_norm": "ffn_norm",
        "mlp_in": ["feed_forward.gate_proj", "feed_forward.up_proj"],
        "mlp_out": "feed_forward.down_proj",
        POST_NORM: f"{projector}norm",
        "merger.0": f"{projector}patch_merger.merging_layer",
        "projector.0": f"{projector}linear_1",
        "projector.1": f"{projector}linear_2",
    }


MMPROJ: Names = {
    **MMPROJ_NAMES,
    "qkv": [Rotated("attn_q"), Rotated("attn_k"), "attn_v"],
    "mlp_in": ["ffn_gate", "ffn_up"],
    POST_NORM: "mm.input_norm",
    "merger.0": "mm.patch_merger",
    "projector.0": "mm.1",
    "projector.1": "mm.2",
}

FAMILY = TowerFamily(describe=describe, namings=(_names("model."), _names(""), MMPROJ), make=PixtralTower)
