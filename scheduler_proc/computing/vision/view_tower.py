"""A tower that encodes each view by itself: what families have in common.

Shape legend: V views, T patches of all views, E embedding size, P values of a patch, N rows, M values that a projector
reads.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu.huge_memory import HUGE_PAGE
from runtime.images.layout import Layout
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.workspace import room_sizes
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.description import TowerDescription
from scheduler_proc.computing.vision.vit import Projector, Vit, whole_rows

PATCHES_AT_ONCE = 4096
"""Views are encoded together as long as they have no more patches than this."""

Grid = tuple[int, int]
"""Lines and columns of the patches of a view."""


class TowerParts(NamedTuple):
    """What a tower is made from. `dtype`: that of its rows. Pixels from 0 to 1 become (pixel - mean) / std."""

    description: TowerDescription
    weights: Weights
    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype
    config: HfConfig


class ViewTower:
    """A vision tower with its weights. Families override what differs."""

    def __init__(self, parts: TowerParts):
        tower, weights, *_ = parts
        self.row_width, self._patch_size, self._side = tower.row_width, tower.patch_size, tower.merged_side
        self._dtype = parts.dtype
        self._weight_bytes = sum(weight.stored.nbytes for weight in weights.values())
        self._description = tower
        self._vit = Vit(tower, weights, self._context(parts))
        self._projectors = [Projector(projector, weights) for projector in tower.projectors]
        self._num_layers = len(tower.layers)
        device = self._vit.device
        self._mean, self._std = (torch.tensor(list(values), device=device) for values in (parts.mean, parts.std))

    def num_bytes(self, max_patches: int) -> int:
        """Returns the memory of the weights and of encoding an image whose largest view has this many patches."""
        return self._weight_bytes + activation_bytes(self._description, max_patches, self._vit.dtype)

    @torch.inference_mode()
    def encode(self, views: Sequence[Tensor], layout: Layout) -> Tensor:
        """Returns the rows of one image, [layout.num_tokens, row_width], on the CPU, in the model's dtype.

        `views` are uint8 [H, W, 3] on the CPU, in the order of `Layout`. Raises `ValueError` if they do not fit it.
        """
        rows = [rows_NE for group in self._group(views) for rows_NE in self._encode_group(group)]
        encoded_NE = self._arrange(rows, layout)
        if encoded_NE.shape != (layout.num_tokens, self.row_width):
            raise ValueError(f"{len(encoded_NE)} rows for an image of {layout.num_tokens} tokens")
        return encoded_NE.to("cpu", self._dtype)

    def _group(self, views: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yields views that are encoded together."""
        group: list[Tensor] = []
        num_patches = 0
        for view in views:
            own = view.shape[0] * view.shape[1] // self._patch_size**2
            if group and num_patches + own > PATCHES_AT_ONCE:
                yield group
                group, num_patches = [], 0
            group.append(view)
            num_patches += own
        if group:
            yield group

    def _encode_group(self, views: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the rows of each view."""
        grids = [self._grid(view) for view in views]
        num_first = int(self._vit.class_token is not None)
        lens = [num_first + height * width for height, width in grids]
        rows = self._rows(lens, grids)
        embedded_TE = self._vit.embed(torch.cat([self._patches_of(view) for view in views]), rows[0])
        kept = self._vit.forward(self._with_positions(embedded_TE, grids), rows)
        merged = [
            [self._merge(of_view[num_first:], grid) for of_view, grid in zip(hidden_TE.split(lens), grids, strict=True)]
            for hidden_TE in kept
        ]
        num_rows = [len(merged_NM) for merged_NM in merged[0]]
        return self._project([torch.cat(of_layer) for of_layer in merged], rows[0]).split(num_rows)

    def _grid(self, view: Tensor) -> Grid:
        height, width, _ = view.shape
        size = self._patch_size
        if height % size or width % size:
            raise ValueError(f"a view of {width} x {height} pixels is not a whole number of patches of {size} x {size}")
        return height // size, width // size

    def _patches_of(self, view: Tensor) -> Tensor:
        """Returns the normalized pixels of each patch, channel by channel, [T, P]."""
        height, width = self._grid(view)
        size = self._patch_size
        pixels = view.to(self._vit.device).float().mul_(1 / 255).sub_(self._mean).div_(self._std)
        patches = pixels.view(height, size, width, size, 3).permute(0, 2, 4, 1, 3)
        return patches.reshape(height * width, -1).to(self._vit.dtype)

    def _with_positions(self, embedded_TE: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Returns the embeddings of patches and, first in each view, the class token, with their positions added."""
        table, first = self._vit.positions, self._vit.class_token
        if table is None:
            return embedded_TE
        found: list[Tensor] = []
        for grid, view_TE in zip(grids, embedded_TE.split([height * width for height, width in grids]), strict=True):
            patches = table if first is None else table[1:]
            if first is not None:
                found.append(first + table[:1])
            found.append(view_TE + self._positions(patches, grid))
        return torch.cat(found)

    def _positions(self, table: Tensor, grid: Grid) -> Tensor:
        """Returns the position embedding of each patch of a view, [T, E]."""
        if len(table) != grid[0] * grid[1]:
            raise ValueError(f"a view of {grid[0]} x {grid[1]} patches, but the tower has {len(table)} positions")
        return table

    def _context(self, parts: TowerParts) -> BlockContext:
        """Returns what the blocks of layers are made with: without rotary positions."""
        return BlockContext(ALONE, lambda *_: (_ for _ in ()).throw(NotImplementedError))

    def _rows(self, lens: Sequence[int], grids: Sequence[Grid]) -> Sequence[StepRows]:
        """Returns the rows of each layer's attention: each view attends to itself."""
        rows = whole_rows(torch.tensor(lens, dtype=torch.int32, device=self._vit.device))
        return [rows] * self._num_layers

    def _merge(self, hidden_TE: Tensor, grid: Grid) -> Tensor:
        """Returns what the projector reads, [N, M], of a view's hidden states after one layer."""
        return shuffle_pixels(hidden_TE, grid, self._side)

    def _project(self, merged: Sequence[Tensor], rows: StepRows) -> Tensor:
        """Returns rows of the encoding, [N, row width], from what `_merge` made of the hidden states of each layer."""
        return self._projectors[0](merged[-1], rows)

    def _arrange(self, rows: Sequence[Tensor], layout: Layout) -> Tensor:
        """Returns the rows of the whole image from those of its views."""
        return torch.cat(list(rows))


def activation_bytes(tower: TowerDescription, max_patches: int, dtype: torch.dtype) -> int:
    """Returns the memory of encoding an image whose largest view has this many patches."""
    rooms = room_sizes(tower.layers, tower.hidden_size)
    # Embeddings before and after positions and a norm; hidden states that are kept, and what projectors read.
    num_values = sum(rooms.values()) + (3 + 2 * len(tower.kept_after)) * tower.hidden_size
    pixel_bytes = tower.patch_values * 2 * (torch.float32.itemsize + dtype.itemsize)
    of_patch = pixel_bytes + num_values * dtype.itemsize
    return max(max_patches, PATCHES_AT_ONCE) * of_patch + len(rooms) * HUGE_PAGE


def shuffle_pixels(hidden_TE: Tensor, grid: Grid, side: int) -> Tensor:
    """Returns the patches of each square of `side` x `side` one after another, [T / side², E * side²]."""
    height, width = grid
    if height % side or width % side:
        raise ValueError(f"{height} x {width} patches are not a whole number of squares of {side} x {side}")
    squares = hidden_TE.view(height // side, side, width // side, side, -1).transpose(1, 2)
    return squares.reshape(height * width // side**2, -1)
