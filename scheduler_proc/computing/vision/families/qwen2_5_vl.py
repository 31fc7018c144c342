"""Qwen2.5-VL: most layers attend within windows, whose patches are one after another from the first layer to the last.

Shape legend: T patches, E embedding size, N squares of patches that become rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import DenseMlpDescription, NormDescription
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.axial import places_of
from scheduler_proc.computing.vision.description import PATCHES, POST_NORM, ProjectorDescription, TowerDescription
from scheduler_proc.computing.vision.family import Names, TowerFamily
from scheduler_proc.computing.vision.mmproj import MMPROJ_NAMES
from scheduler_proc.computing.vision.qwen import MMPROJ_QWEN, QwenTower, describe_qwen, merged_sizes
from scheduler_proc.computing.vision.siglip import find_section
from scheduler_proc.computing.vision.view_tower import Grid, TowerParts
from scheduler_proc.computing.vision.vit import whole_rows


def describe(config: HfConfig) -> TowerDescription:
    vision = find_section(config, "vision_config")
    norm = NormDescription(kind="rms", size=vision.count("hidden_size"), eps=1e-6)
    vision.choice("hidden_act", ["silu"], "silu")
    mlp = DenseMlpDescription(size=vision.count("intermediate_size"), activation="silu_gated", has_bias=True)
    projector = ProjectorDescription(sizes=merged_sizes(vision))
    return TowerDescription(
        **describe_qwen(vision, norm, mlp),
        has_patch_bias=False,
        projectors=(projector,),
        row_width=projector.sizes[-1],
    )


class Qwen2_5Tower(QwenTower):  # noqa: N801
    def __init__(self, parts: TowerParts):
        super().__init__(parts)
        vision = find_section(parts.config, "vision_config")
        self._full_layers = set(vision.indices("fullatt_block_indexes"))
        side = vision.count("window_size", 112) // self._patch_size // self._side
        self._window = max(1, side) * self._side
        """Lines and columns of patches of a window."""

    def _order(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Returns the patches, [T], window by window and square by square, and the number in each window."""
        places, side, window = places_of(grid, self._side), self._side, self._window
        windows = places // window
        numbers = windows[:, 0] * -(-grid[1] // window) + windows[:, 1]
        by_window = torch.sort(numbers, stable=True).indices
        raster = places @ torch.tensor([grid[1], 1])
        assert side <= window
        return raster[by_window], torch.bincount(numbers)

    def _patches_of(self, view: Tensor) -> Tensor:
        order, _ = self._order(self._grid(view))
        return super()._patches_of(view)[order.to(self._vit.device)]

    def _places(self, grid: Grid) -> Tensor:
        return places_of(grid)[self._order(grid)[0]]

    def _rows(self, lens: Sequence[int], grids: Sequence[Grid]) -> Sequence[StepRows]:
        whole, *_ = super()._rows(lens, grids)
        window_lens = torch.cat([self._order(grid)[1] for grid in grids]).to(whole.step.prefill_query_lens)
        windows = whole_rows(window_lens, whole.step.positions)
        return [whole if layer in self._full_layers else windows for layer in range(self._num_layers)]

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        """Returns the patches of each square one after another, [N, E * side²], squares line by line."""
        merged = hidden_TE.view(-1, self._side**2 * hidden_TE.shape[1])
        firsts = self._order(grid)[0][:: self._side**2]
        return merged[torch.argsort(firsts).to(merged.device)]


def _names(prefix: str) -> Names:
    return {
        PATCHES: f"{prefix}patch_embed.proj",
        "layers": f"{prefix}blocks.{{}}.",
        "qkv": "attn.qkv",
        "attention_out": "attn.proj",
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "mlp_in": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp_out": "mlp.down_proj",
        POST_NORM: f"{prefix}merger.ln_q",
        "projector.0": f"{prefix}merger.mlp.0",
        "projector.1": f"{prefix}merger.mlp.2",
    }


MMPROJ = {**MMPROJ_NAMES, **MMPROJ_QWEN, "mlp_in": ["ffn_gate", "ffn_up"]}

FAMILY = TowerFamily(describe=describe, namings=(_names("model.visual."), _names("visual."), MMPROJ), make=Qwen2_5Tower)
