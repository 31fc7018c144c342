"""Qwen3-VL and the tower of Qwen3.5: interpolated positions, and features of earlier layers (deepstack).

A row has the features of the last layer, then those of each of the earlier layers, which the decoder adds to the
hidden states after its first layers.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, NormDescription
from scheduler_proc.computing.model.families.gpt2 import ACTIVATIONS
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.description import (
    PATCHES,
    POSITIONS,
    POST_NORM,
    ProjectorDescription,
    TowerDescription,
)
from scheduler_proc.computing.vision.family import Exact, Names, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.qwen import MMPROJ_QWEN, QwenTower, describe_qwen, merged_sizes
from scheduler_proc.computing.vision.siglip import find_section
from scheduler_proc.computing.vision.view_tower import Grid

DEEPSTACK = "deepstack"


def describe(config: HfConfig) -> TowerDescription:
    vision = find_section(config, "vision_config")
    norm = NormDescription(kind="layer", size=vision.count("hidden_size"), eps=1e-6)
    activation = vision.choice("hidden_act", list(ACTIVATIONS), "gelu_pytorch_tanh")
    mlp = DenseMlpDescription(size=vision.count("intermediate_size"), activation=ACTIVATIONS[activation], has_bias=True)
    fields = describe_qwen(vision, norm, mlp)
    layers, num_layers = sorted(vision.indices("deepstack_visual_indexes")), len(fields["layers"])
    if layers and layers[-1] >= num_layers - 1:
        raise vision.refuse("deepstack_visual_indexes", layers, f"layers before the last of {num_layers} are supported")
    sizes = merged_sizes(vision)
    projector, wide_norm = ProjectorDescription(sizes=sizes), replace(norm, size=sizes[0])
    deepstack = (
        replace(projector, name=f"{DEEPSTACK}.{layer}.{number}", norm=wide_norm) for number, layer in enumerate(layers)
    )
    fields["kept_after"] = (*(layer + 1 for layer in layers), num_layers)
    return TowerDescription(
        **fields,
        num_positions=vision.count("num_position_embeddings", 2304),
        projectors=(projector, *deepstack),
        row_width=sizes[-1] * (1 + len(layers)),
    )


class Qwen3Tower(QwenTower):
    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """Returns the tower's grid of positions, interpolated to the grid of the view, corner to corner."""
        side = round(len(table) ** 0.5)
        table_1EHW = table.float().T.reshape(1, -1, side, side)
        found_1EHW = functional.interpolate(table_1EHW, grid, mode="bilinear", align_corners=True)
        return found_1EHW[0].flatten(1).T.to(table.dtype)

    def _project(self, merged: list[Tensor], rows: StepRows) -> Tensor:
        *earlier, last = merged
        parts = zip(self._projectors, (last, *earlier), strict=True)
        return torch.cat([projector(merged_NM, rows) for projector, merged_NM in parts], 1)


def _names(prefix: str) -> Names:
    return {
        PATCHES: f"{prefix}patch_embed.proj",
        POSITIONS: Exact(f"{prefix}pos_embed.weight"),
        "layers": f"{prefix}blocks.{{}}.",
        "qkv": "attn.qkv",
        "attention_out": "attn.proj",
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "mlp_in": "mlp.linear_fc1",
        "mlp_out": "mlp.linear_fc2",
        POST_NORM: f"{prefix}merger.norm",
        "projector.0": f"{prefix}merger.linear_fc1",
        "projector.1": f"{prefix}merger.linear_fc2",
        DEEPSTACK: f"{prefix}deepstack_merger_list.{{1}}.",
        "deepstack.norm": "norm",
        "deepstack.0": "linear_fc1",
        "deepstack.1": "linear_fc2",
    }


MMPROJ = {
    **MMPROJ_NAMES,
    **MMPROJ_QWEN,
    "qkv": "attn_qkv",
    DEEPSTACK: "v.deepstack.{0}.",
    "deepstack.norm": "norm",
    "deepstack.0": "fc1",
    "deepstack.1": "fc2",
}

FAMILY = TowerFamily(describe=describe, namings=(_names("model.visual."), _names("visual."), MMPROJ), make=Qwen3Tower)
