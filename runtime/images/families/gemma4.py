"""Gemma 4: one view of any shape, made as large as its number of tokens allows."""

import math
from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, shared_fields, text_config

BUDGETS = (70, 140, 280, 560, 1120)
"""The numbers of tokens with which the model was trained."""

BEGIN, IMAGE, END = "<|image>", "<|image|>", "<image|>"


class Gemma4(Rule, frozen=True, kw_only=True):
    """`cell` is the side of the patches that become one token."""

    cell: int
    max_tokens: int

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        shared = shared_fields({"resample": 3, "do_normalize": False} | dict(processor), config, IMAGE)
        return cls(
            cell=count(processor, "patch_size", 16) * count(processor, "pooling_kernel_size", 3),
            max_tokens=count(processor, "max_soft_tokens", 280),
            is_two_way=text_config(config).get("use_bidirectional_attention") == "vision",
            **shared,
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A budget may also be larger than the model's own: images are always scaled to it."""
        limit = budget.max_tokens or self.max_tokens
        if budget.max_pixels:
            limit = min(limit, budget.max_pixels // self.cell**2)
        max_tokens = max((number for number in (*BUDGETS, self.max_tokens) if number <= limit), default=BUDGETS[0])
        columns, lines = self._grid(size, max_tokens)
        resized = columns * self.cell, lines * self.cell
        return Layout((resized,), self.filter, lines * columns, grid=(lines, columns))

    def text(self, layout: Layout) -> str:
        return f"{BEGIN}{super().text(layout)}{END}"

    def _grid(self, size: Size, max_tokens: int) -> tuple[int, int]:
        """Returns columns and lines: the largest ones of the image's shape with at most `max_tokens` cells."""
        width, height = size
        scale = math.sqrt(max_tokens * self.cell**2 / (width * height))
        columns, lines = (math.floor(scale * side / self.cell) for side in size)
        if not lines:
            return min(width // height, max_tokens), 1
        if not columns:
            return 1, min(height // width, max_tokens)
        return columns, lines
