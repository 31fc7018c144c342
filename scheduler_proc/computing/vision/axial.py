"""Towers whose queries and keys are rotated by the line and the column of their patch.

Shape legend: T patches of all views, X pairs of values of a head.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import EncoderAttentionDescription
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.description import RopeDescription
from scheduler_proc.computing.model.families.bert import describe_attention
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.step.rows import StepRows
from scheduler_proc.computing.vision.description import PATCHES
from scheduler_proc.computing.vision.view_tower import Grid, TowerParts, ViewTower
from scheduler_proc.computing.vision.vit import whole_rows


class AxialTables:
    """The angles of the patches that are encoded now, each in a row of its own: the line's, then the column's.

    `has_own_columns`: columns have the frequencies between those of lines, as in Pixtral, not the same ones.
    """

    def __init__(self, device: torch.device, *, has_own_columns: bool = False):
        self._device = device
        self._tables: RopeTables | None = None
        self._frequencies = torch.empty(0, 0)
        self._has_own_columns = has_own_columns

    def find(self, rope: RopeDescription, head_dim: int) -> RopeTables:
        """Returns the tables, which are filled by `set`. All layers have the same."""
        if self._tables is None:
            exponents_X = torch.arange(0, head_dim, 2).float() / head_dim
            lines, columns = exponents_X[::2], exponents_X[1 if self._has_own_columns else 0 :: 2]
            self._frequencies = torch.stack([1.0 / rope.theta**exponents for exponents in (lines, columns)])
            empty = torch.empty(0, head_dim // 2, device=self._device)
            self._tables = RopeTables(empty, empty.clone())
        return self._tables

    def set(self, places: Tensor) -> None:
        """Sets the line and the column of each patch, [T, 2]."""
        assert self._tables is not None
        angles_TX = (places[:, :, None].float() * self._frequencies).flatten(1)
        for table, values in zip(self._tables[:2], (angles_TX.cos(), angles_TX.sin()), strict=True):
            table.resize_(values.shape).copy_(values)


def places_of(grid: Grid, side: int = 1) -> Tensor:
    """Returns the line and the column of each patch, [T, 2], square by square of `side` x `side`."""
    height, width = grid
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    squares = places.view(height // side, side, width // side, side, 2).transpose(1, 2)
    return squares.reshape(-1, 2)


class AxialTower(ViewTower):
    """A tower whose views attend to themselves, with rotary positions by line and column."""

    has_own_columns = False

    def _context(self, parts: TowerParts) -> BlockContext:
        device = parts.weights[f"{PATCHES}.weight"].stored.device
        self._tables = AxialTables(device, has_own_columns=self.has_own_columns)
        return BlockContext(ALONE, self._tables.find)

    def _rows(self, lens: Sequence[int], grids: Sequence[Grid]) -> Sequence[StepRows]:
        device = self._vit.device
        self._tables.set(torch.cat([self._places(grid) for grid in grids]))
        positions = torch.arange(sum(lens), dtype=torch.int32, device=device)
        rows = whole_rows(torch.tensor(lens, dtype=torch.int32, device=device), positions)
        return [rows] * self._num_layers

    def _places(self, grid: Grid) -> Tensor:
        """Returns the line and the column of each patch of a view, [T, 2], in the order of the hidden states."""
        return places_of(grid)


def describe_axial(
    vision: HfConfig, *, has_bias: bool, heads: str = "num_attention_heads"
) -> EncoderAttentionDescription:
    """Returns attention whose heads share the hidden size and are rotated."""
    attention = describe_attention(vision, has_bias=has_bias, heads=heads)
    if attention.head_dim % 4:
        size = vision.count("hidden_size")
        raise vision.refuse("hidden_size", size, f"it must be a multiple of 4 times {attention.num_heads} heads")
    return replace(attention, rope=RopeDescription(theta=axial_theta(vision, 10000.0)))


def axial_theta(vision: HfConfig, default: float) -> float:
    return (vision.section("rope_parameters") or vision).number("rope_theta", default)
