"""LLaVA-NeXT and Granite Vision: tiles without their padding, with a mark at the end of each line."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from runtime.images.layout import Layout
from scheduler_proc.computing.model.blocks.weights import pop_tensor
from scheduler_proc.computing.vision.family import TowerFamily
from scheduler_proc.computing.vision.llava import (
    NEWLINE,
    LlavaTower,
    describe_llava,
    join_tiles,
    llava_names,
    with_newlines,
)
from scheduler_proc.computing.vision.view_tower import TowerParts


class LlavaNextTower(LlavaTower):
    def __init__(self, parts: TowerParts):
        super().__init__(parts)
        self._newline_E = pop_tensor(parts.weights, NEWLINE)

    def _arrange(self, rows: Sequence[Tensor], layout: Layout) -> Tensor:
        """Returns the overview's rows, then those of the tiles; a view alone ends with one mark.

        `layout.grid`: the lines and columns of patches that are no padding.
        """
        *tiles, overview_NE = rows
        if not tiles:
            return torch.cat((overview_NE, self._newline_E[None]))
        whole_HWE = self._shrink(join_tiles(tiles, layout.tiles, layout.grid), round(len(overview_NE) ** 0.5))
        return torch.cat((overview_NE, with_newlines(whole_HWE, self._newline_E)))

    def _shrink(self, whole_HWE: Tensor, side: int) -> Tensor:
        """Returns the rows of the joined tiles, of `side` x `side` rows each, fewer if there are too many."""
        return whole_HWE


FAMILY = TowerFamily(
    describe=partial(describe_llava, default_layer=-2, has_newline=True), namings=llava_names(), make=LlavaNextTower
)
