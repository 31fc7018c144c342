"""Pixtral and Mistral 3: one view of any shape that is only made smaller, with a mark behind each line of tokens."""

import math
from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, shared_fields


class Pixtral(Rule, frozen=True, kw_only=True):
    """`cell` is the side of a merged patch."""

    cell: int
    longest_edge: int

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        merge = 2 if config.get("model_type") == "mistral3" else 1
        return cls(
            cell=count(config, "vision_config.patch_size", 16) * count(config, "spatial_merge_size", merge),
            longest_edge=count(processor, "size.longest_edge"),
            **shared_fields(processor, config, "[IMG]"),
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A smaller budget means a smaller `longest_edge`."""
        longest = self.longest_edge
        lines, columns = self._grid(size, longest)
        while longest > self.cell and (
            0 < budget.max_tokens < lines * columns or 0 < budget.max_pixels < lines * columns * self.cell**2
        ):
            longest = (longest - 1) // self.cell * self.cell
            lines, columns = self._grid(size, longest)
        resized = columns * self.cell, lines * self.cell
        return Layout((resized,), self.filter, lines * columns, grid=(lines, columns))

    def text(self, layout: Layout) -> str:
        lines, columns = layout.grid
        line = self.placeholder * columns
        return "[IMG_BREAK]".join([line] * lines) + "[IMG_END]"

    def _grid(self, size: Size, longest_edge: int) -> tuple[int, int]:
        ratio = max(1.0, *(side / longest_edge for side in size))
        width, height = (max(1, math.floor(side / ratio)) for side in size)
        return -(-height // self.cell), -(-width // self.cell)
