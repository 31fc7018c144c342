"""LLaVA: CLIP or SigLIP without their last layers, and an MLP; what its versions have in common.

Shape legend: H x W patches of a whole image, E embedding size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.description import ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import Exact, Names
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.siglip import (
    describe_siglip,
    find_section,
    projector_activation,
    text_width,
    tower_names,
)
from scheduler_proc.computing.vision.view_tower import ViewTower

NEWLINE = "image_newline"
FEATURE_LAYER = "vision_feature_layer"


def describe_llava(config: HfConfig, *, default_layer: int, has_newline: bool) -> TowerDescription:
    """`default_layer`: the layer after which hidden states are read, -1 for the last."""
    vision, row_width = find_section(config, "vision_config"), text_width(config)
    kind = vision.choice("model_type", ["clip_vision_model", "siglip_vision_model"])
    is_clip = kind == "clip_vision_model"
    strategy = config.choice("vision_feature_select_strategy", ["default", "full"], "default" if is_clip else "full")
    if (strategy == "default") != is_clip:
        raise config.refuse("vision_feature_select_strategy", strategy, f"with {kind} it drops no class token alone")
    num_all = vision.num_layers
    kept = [layer if layer >= 0 else num_all + 1 + layer for layer in config.integers(FEATURE_LAYER, default_layer)]
    if not all(0 < layer <= num_all for layer in kept) or kept != sorted(set(kept)):
        raise config.refuse(FEATURE_LAYER, kept, f"supported are layers in ascending order, of {num_all}")
    fields = describe_siglip(vision, kept[-1])
    norm = fields.pop("post_norm")
    if is_clip:
        fields |= {"has_class_token": True, "num_positions": fields["num_positions"] + 1, "pre_norm": norm}
    size = fields["hidden_size"]
    return TowerDescription(
        **fields | {"kept_after": tuple(kept), "has_patch_bias": not is_clip},
        projectors=(
            ProjectorDescription(
                sizes=(size * len(kept), row_width, row_width),
                activation=projector_activation(config),
                has_bias=config.flag("multimodal_projector_bias", True),
            ),
        ),
        row_width=row_width,
        others=(Parameter(NEWLINE, (row_width,), "positions"),) if has_newline else (),
    )


class LlavaTower(ViewTower):
    def _project(self, merged: Sequence[Tensor], rows: StepRows) -> Tensor:
        """The features of several layers are read together."""
        return super()._project([torch.cat(list(merged), 1)], rows)


def join_tiles(rows: Sequence[Tensor], tiles: tuple[int, int], kept: tuple[int, int]) -> Tensor:
    """Returns the rows of square tiles as one image, [H, W, E], without padding: its middle `kept` lines and columns.

    Raises `ValueError` if the image is not that large.
    """
    lines, columns = tiles
    side = round(len(rows[0]) ** 0.5)
    whole = torch.stack(list(rows)).view(lines, columns, side, side, -1).transpose(1, 2)
    whole = whole.reshape(lines * side, columns * side, -1)
    for dim, num in enumerate(kept):
        num_missing = whole.shape[dim] - num
        if num_missing < 0 or num_missing % 2:
            raise ValueError(f"{num} lines or columns cannot be the middle of {whole.shape[dim]}")
        whole = whole.narrow(dim, num_missing // 2, num)
    return whole


def with_newlines(whole_HWE: Tensor, newline_E: Tensor) -> Tensor:
    """Returns the image's rows with the newline's at the end of each line."""
    ends = newline_E.expand(len(whole_HWE), 1, -1)
    return torch.cat((whole_HWE, ends), 1).flatten(0, 1)


def llava_names() -> tuple[Names, ...]:
    projector: dict[str, str | Exact] = {
        f"projector.{number}": f"multi_modal_projector.linear_{number + 1}" for number in range(2)
    }
    return (
        *tower_names(projector | {NEWLINE: Exact("image_newline")}),
        MMPROJ_NAMES | {"projector.0": "mm.0", "projector.1": "mm.2", NEWLINE: Exact("model.image_newline")},
    )
