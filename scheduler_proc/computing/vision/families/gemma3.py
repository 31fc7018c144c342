"""Gemma 3: SigLIP, the average of squares of patches, a norm, and a matrix."""

from torch import Tensor
from torch.nn import functional

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import NormDescription
from scheduler_proc.computing.vision.description import ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import Exact, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import describe_siglip, find_section, text_width, tower_names
from scheduler_proc.computing.vision.view_tower import Grid, TowerParts, ViewTower


def describe(config: HfConfig) -> TowerDescription:
    fields, row_width = describe_siglip(find_section(config, "vision_config")), text_width(config)
    size = fields["hidden_size"]
    norm = NormDescription(kind="rms", size=size, eps=fields["post_norm"].eps, is_zero_centered=True)
    projector = ProjectorDescription(sizes=(size, row_width), norm=norm, has_bias=False)
    return TowerDescription(**fields, projectors=(projector,), row_width=row_width)


class Gemma3Tower(ViewTower):
    def __init__(self, parts: TowerParts):
        super().__init__(parts)
        per_side = round(parts.description.num_positions**0.5)
        self._side = per_side // round(parts.config.count("mm_tokens_per_image", 256) ** 0.5)

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        """Returns the averages of squares of patches."""
        hidden_EHW = hidden_TE.T.reshape(1, -1, *grid)
        return functional.avg_pool2d(hidden_EHW, self._side).flatten(2)[0].T.contiguous()


PROJECTION = "multi_modal_projector.mm_input_projection_weight"

FAMILY = TowerFamily(
    describe=describe,
    namings=(
        *tower_names(
            {
                "projector.norm": "multi_modal_projector.mm_soft_emb_norm",
                "projector.0": Exact(PROJECTION, "transposed"),
            }
        ),
        MMPROJ_NAMES
        | {"projector.norm": "mm.soft_emb_norm", "projector.0": Exact("mm.input_projection.weight", "transposed")},
    ),
    make=Gemma3Tower,
    changes={"soft_emb_norm": {"is_one_more": True}},
)
