"""Idefics3, SmolVLM, SmolVLM2 and granite-docling: SigLIP, a pixel shuffle, and one linear."""

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.vision.description import ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import MAX_MERGE, describe_siglip, find_section, siglip_names, text_width
from scheduler_proc.computing.vision.view_tower import Grid, ViewTower


def describe(config: HfConfig) -> TowerDescription:
    fields, row_width = describe_siglip(find_section(config, "vision_config")), text_width(config)
    side = config.count("scale_factor", 2, most=MAX_MERGE)
    projector = ProjectorDescription(sizes=(fields["hidden_size"] * side**2, row_width), has_bias=False)
    return TowerDescription(**fields, projectors=(projector,), row_width=row_width, merged_side=side)


class Idefics3Tower(ViewTower):
    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """Returns the embeddings at the same fractions of the height and the width of the tower's own grid."""
        side = round(len(table) ** 0.5)
        boundaries = torch.arange(1 / side, 1.0, 1 / side)
        lines, columns = (
            torch.bucketize((torch.arange(num).float() * (1.0 / num)).clamp(max=1.0 - 1e-6), boundaries, right=True)
            for num in grid
        )
        return table[(lines[:, None] * side + columns).flatten().to(table.device)]


NAMES = [
    siglip_names(f"{prefix}vision_model.", {"projector.0": f"{prefix}connector.modality_projection.proj"})
    for prefix in ("model.", "")
]

FAMILY = TowerFamily(
    describe=describe, namings=(*NAMES, MMPROJ_NAMES | {"projector.0": "mm.model.fc"}), make=Idefics3Tower
)
