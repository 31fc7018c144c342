"""LFM2-VL: one view of any shape or, for large images, named tiles and then the whole image in that shape."""

import math
from typing import Self

from runtime.images.families.internvl import MAX_TILES, nearest_grid
from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, field, shared_fields


class Lfm2Vl(Rule, frozen=True, kw_only=True):
    """`cell` is the side of a merged patch. Images with more than `max_tokens * tolerance` cells are divided."""

    cell: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    tile: int
    min_tiles: int
    max_tiles: int
    has_overview: bool
    has_marks: bool

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        splits = field(processor, "do_image_splitting", bool, True)
        return cls(
            cell=count(processor, "encoder_patch_size", 16) * count(processor, "downsample_factor", 2),
            min_tokens=count(processor, "min_image_tokens", 64),
            max_tokens=count(processor, "max_image_tokens", 256),
            tolerance=field(processor, "max_pixels_tolerance", float, 2.0),
            tile=count(processor, "tile_size", 512),
            min_tiles=count(processor, "min_tiles", 2) if splits else 1,
            max_tiles=min(MAX_TILES, count(processor, "max_tiles", 10)) if splits else 1,
            has_overview=field(processor, "use_thumbnail", bool, True),
            has_marks=field(processor, "use_image_special_tokens", bool, True),
            **shared_fields({"resample": 2} | dict(processor), config, "<image>"),
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A smaller budget means no tiles, then a smaller view."""
        limit = budget.max_tokens or (budget.max_pixels and max(1, budget.max_pixels // self.cell**2))
        max_tokens = min(self.max_tokens, limit or self.max_tokens)
        columns, lines = self._view(size, max_tokens)
        view = columns * self.cell, lines * self.cell
        single = Layout((view,), self.filter, lines * columns, grid=(lines, columns))
        if self.max_tiles == 1 or not self._is_large(size):
            return single
        tile = self.tile, self.tile
        tile_columns, tile_lines = nearest_grid(size, tile, self.min_tiles, self.max_tiles)
        num_tiles = tile_columns * tile_lines
        num_tokens = num_tiles * self._tile_tokens + (lines * columns if self.has_overview and num_tiles > 1 else 0)
        if 0 < (limit or 0) < num_tokens:
            return single
        return Layout(
            ((tile_columns * self.tile, tile_lines * self.tile),),
            self.filter,
            num_tokens,
            tile=tile,
            overview=view if self.has_overview and num_tiles > 1 else None,
            grid=(lines, columns),
        )

    def text(self, layout: Layout) -> str:
        lines, columns = layout.tiles
        parts = [
            (f"<|img_row_{line}_col_{column}|>" if self.has_marks else "") + self.placeholder * self._tile_tokens
            for line in range(1, lines + 1)
            for column in range(1, columns + 1)
        ]
        if layout.overview is not None:
            parts.append("<|img_thumbnail|>" if self.has_marks else "")
        if layout.overview is not None or not parts:
            parts.append(self.placeholder * (layout.grid[0] * layout.grid[1]))
        text = "".join(parts)
        return f"<|image_start|>{text}<|image_end|>" if self.has_marks else text

    @property
    def _tile_tokens(self) -> int:
        return math.ceil(self.tile / self.cell) ** 2

    def _is_large(self, size: Size) -> bool:
        width, height = (max(self.cell // 2, round(side / self.cell) * self.cell) for side in size)
        return width * height > self.max_tokens * self.cell**2 * self.tolerance

    def _view(self, size: Size, max_tokens: int) -> Size:
        """Returns columns and lines, as `fit_area` does, whatever the ratio of the sides."""
        area = size[0] * size[1]
        columns, lines = (max(1, round(side / self.cell)) for side in size)
        if columns * lines > max_tokens:
            shrunk = math.sqrt(area / (max_tokens * self.cell**2))
            columns, lines = (max(1, math.floor(side / shrunk / self.cell)) for side in size)
        elif columns * lines < min(self.min_tokens, max_tokens):
            grown = math.sqrt(min(self.min_tokens, max_tokens) * self.cell**2 / area)
            columns, lines = (math.ceil(side * grown / self.cell) for side in size)
        return columns, lines
