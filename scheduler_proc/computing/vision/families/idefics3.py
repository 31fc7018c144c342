"""Idefics3, SmolVLM, SmolVLM2 and granite-docling: SigLIP, pixel shuffle, one linear."""

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.vision.description import ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import TowerFamily, TowerParts
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import describe_siglip, find_section, siglip_names
from scheduler_proc.computing.vision.view_tower import Grid, ViewTower, shuffle_pixels


def describe(config: HfConfig) -> TowerDescription:
    fields = describe_siglip(find_section(config, "vision_config"))
    row_width, side = find_section(config, "text_config").count("hidden_size"), config.count("scale_factor", 2, most=64)
    projector = ProjectorDescription(sizes=(fields["hidden_size"] * side**2, row_width), has_bias=False)
    return TowerDescription(**fields, projectors=(projector,), row_width=row_width)


class Idefics3Tower(ViewTower):
    def __init__(self, parts: TowerParts):
        super().__init__(parts)
        self._side = parts.config.count("scale_factor", 2)

    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """Returns the embeddings at the same fractions of the height and the width of the tower's own grid."""
        side = round(len(table) ** 0.5)
        boundaries = torch.arange(1 / side, 1.0, 1 / side)
        lines, columns = (
            torch.bucketize((torch.arange(num).float() * (1.0 / num)).clamp(max=1.0 - 1e-6), boundaries, right=True)
            for num in grid
        )
        return table[(lines[:, None] * side + columns).flatten().to(table.device)]

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        return shuffle_pixels(hidden_TE, grid, self._side)


NAMES = [
    siglip_names(f"{prefix}vision_model.", projector__0=f"{prefix}connector.modality_projection.proj")
    for prefix in ("model.", "")
]

FAMILY = TowerFamily(
    describe=describe, namings=(*NAMES, MMPROJ_NAMES | {"projector.0": "mm.model.fc"}), make=Idefics3Tower
)
