"""LFM2-VL: SigLIP 2 for views of any shape, a pixel shuffle, and an MLP.

Shape legend: G cells of a side of the table of positions, H or W patches of a side of the view, E embedding size.
"""

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import NormDescription
from scheduler_proc.computing.vision.description import ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import (
    MAX_MERGE,
    describe_siglip,
    find_section,
    projector_activation,
    text_width,
    tower_names,
)
from scheduler_proc.computing.vision.view_tower import Grid, ViewTower

EPS = 1e-5


def describe(config: HfConfig) -> TowerDescription:
    vision, row_width = find_section(config, "vision_config"), text_width(config)
    vision = vision.overridden(HfConfig({"image_size": vision.count("patch_size", 16)}))  # views have any size
    fields = describe_siglip(vision)
    fields["num_positions"] = vision.count("num_patches", 256, most=1 << 16)
    side = config.count("downsample_factor", 2, most=MAX_MERGE)
    size = fields["hidden_size"] * side**2
    has_norm = config.flag("projector_use_layernorm", True)
    projector = ProjectorDescription(
        sizes=(size, config.count("projector_hidden_size", 2560), row_width),
        norm=NormDescription(kind="layer", size=size, eps=EPS) if has_norm else None,
        activation=projector_activation(config),
        has_bias=config.flag("projector_bias", True),
    )
    return TowerDescription(**fields, projectors=(projector,), row_width=row_width, merged_side=side)


class Lfm2VlTower(ViewTower):
    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """Returns the embeddings of the table's square, resized to the view's grid."""
        side = round(len(table) ** 0.5)
        lines_HG, columns_WG = (_weights(num, side).to(table.device) for num in grid)
        square_GGE = table.float().view(side, side, -1)
        resized_HWE = torch.einsum("hg,wf,gfe->hwe", lines_HG, columns_WG, square_GGE)
        return resized_HWE.flatten(0, 1).to(table.dtype)


def _weights(num: int, side: int) -> Tensor:
    """Returns the part of each cell in each of `num` places: bilinear with antialiasing, cells' middles apart."""
    scale = side / num
    centers = (torch.arange(num, dtype=torch.float32) + 0.5) * scale - 0.5
    distances = (torch.arange(side) - centers[:, None]).abs() / max(scale, 1)
    weights = (1 - distances).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True)


PROJECTOR = "multi_modal_projector"

FAMILY = TowerFamily(
    describe=describe,
    namings=(
        *tower_names(
            {
                "projector.norm": f"{PROJECTOR}.layer_norm",
                "projector.0": f"{PROJECTOR}.linear_1",
                "projector.1": f"{PROJECTOR}.linear_2",
            },
            patches="channels_last",
        ),
        MMPROJ_NAMES | {"projector.norm": "mm.input_norm", "projector.0": "mm.1", "projector.1": "mm.2"},
    ),
    make=Lfm2VlTower,
)
