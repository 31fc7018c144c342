"""Qwen2.5-VL, Qwen3-VL, and Qwen3.5's tower: one view of any shape, whose sides are multiples of a merged patch."""

import math
from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, field, shared_fields

MAX_RATIO = 200


class QwenVl(Rule, frozen=True, kw_only=True):
    """`cell` is the side of a merged patch, `num_deepstack` the number of layers whose features are added later."""

    cell: int
    min_pixels: int
    max_pixels: int
    num_deepstack: int = 0
    has_axes: bool = True

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        return cls(
            cell=count(processor, "patch_size") * count(processor, "merge_size", 2),
            min_pixels=count(processor, "min_pixels", count(processor, "size.shortest_edge", 56 * 56)),
            max_pixels=count(processor, "max_pixels", count(processor, "size.longest_edge", 28 * 28 * 1280)),
            num_deepstack=len(field(config, "vision_config.deepstack_visual_indexes", list[int], [])),
            **shared_fields(processor, config, "<|image_pad|>", part="<|vision_start|><|image_pad|><|vision_end|>"),
        )

    @property
    def row_width(self) -> int:
        return self.hidden_size * (1 + self.num_deepstack)

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        max_pixels = min(self.max_pixels, budget.max_pixels or self.max_pixels)
        max_pixels = min(max_pixels, budget.max_tokens * self.cell**2 or max_pixels)
        min_pixels = min(budget.min_pixels or self.min_pixels, max_pixels)
        width, height = resized = fit_area(size, self.cell, min_pixels, max_pixels)
        grid = height // self.cell, width // self.cell
        return Layout((resized,), self.filter, grid[0] * grid[1], grid=grid)


def fit_area(size: Size, cell: int, min_pixels: int, max_pixels: int) -> Size:
    """transformers' `smart_resize`: both sides become multiples of `cell`, the nearest ones with an area within limits.

    Raises `ValueError` for a side more than `MAX_RATIO` times as long as the other.
    """
    width, height = size
    if max(size) / min(size) > MAX_RATIO:
        raise ValueError(f"one side may be at most {MAX_RATIO} times as long as the other")
    columns, lines = round(width / cell), round(height / cell)
    if lines * cell * columns * cell > max_pixels:
        shrunk = math.sqrt((height * width) / max_pixels)
        columns, lines = (max(1, math.floor(side / shrunk / cell)) for side in size)
    elif lines * cell * columns * cell < min_pixels:
        grown = math.sqrt(min_pixels / (height * width))
        columns, lines = (math.ceil(side * grown / cell) for side in size)
    return columns * cell, lines * cell
