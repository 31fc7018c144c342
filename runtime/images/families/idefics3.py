"""Idefics3, SmolVLM and SmolVLM2: tiles in rows, each with a name, then the whole image as one more tile."""

import math
from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, field, shared_fields

MAX_LONGEST_EDGE = 4096
"""transformers' `MAX_IMAGE_SIZE`."""

FAKE, GLOBAL = "<fake_token_around_image>", "<global-img>"


class Idefics3(Rule, frozen=True, kw_only=True):
    """The longer side is resized to `longest_edge`, then both up to multiples of `tile`."""

    longest_edge: int
    tile: int
    tile_tokens: int
    splits: bool

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        tile = count(processor, "max_image_size.longest_edge")
        patch, scale = count(config, "vision_config.patch_size"), count(config, "scale_factor")
        return cls(
            longest_edge=count(processor, "size.longest_edge"),
            tile=tile,
            tile_tokens=count(processor, "image_seq_len", (tile // patch // scale) ** 2),
            splits=field(processor, "do_image_splitting", bool, True),
            **shared_fields(processor, config, "<image>"),
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A smaller budget means a smaller `longest_edge`, which must be a multiple of the tile (as in SmolVLM's)."""
        longest, smallest = min(self.longest_edge, MAX_LONGEST_EDGE), self.tile
        layout = self._layout(size, longest)
        while longest > smallest and _exceeds(layout, budget):
            longest = max((longest - 1) // self.tile * self.tile, smallest)
            layout = self._layout(size, longest)
        return layout

    def text(self, layout: Layout) -> str:
        images = self.placeholder * self.tile_tokens
        whole = f"{FAKE}{GLOBAL}{images}{FAKE}"
        lines, columns = layout.tiles
        if not lines:
            return whole
        tiles = [
            "".join(f"{FAKE}<row_{line}_col_{column}>{images}" for column in range(1, columns + 1)) + "\n"
            for line in range(1, lines + 1)
        ]
        return f"{''.join(tiles)}\n{whole}"

    def _layout(self, size: Size, longest_edge: int) -> Layout:
        resized = _scaled(size, longest_edge)
        one = (self.tile, self.tile)
        if not self.splits:
            return Layout((resized, one), self.filter, self.tile_tokens)
        whole_tiles = _whole_tiles(resized, self.tile)
        if whole_tiles == one:
            return Layout((resized, one), self.filter, self.tile_tokens)
        num_tiles = whole_tiles[0] * whole_tiles[1] // self.tile**2
        num_tokens = (num_tiles + 1) * self.tile_tokens
        return Layout((resized, whole_tiles), self.filter, num_tokens, tile=one, overview=one, overview_of="resized")


def _exceeds(layout: Layout, budget: Budget) -> bool:
    width, height = layout.resizes[-1]
    return 0 < budget.max_tokens < layout.num_tokens or 0 < budget.max_pixels < width * height


def _scaled(size: Size, longest_edge: int) -> Size:
    """Returns the size with this longer side; the shorter one is even."""
    width, height = size
    ratio = width / height
    if width >= height:
        width, height = longest_edge, int(longest_edge / ratio)
        height += height % 2
    else:
        width, height = int(longest_edge * ratio), longest_edge
        width += width % 2
    return max(width, 1), max(height, 1)


def _whole_tiles(size: Size, tile: int) -> Size:
    width, height = size
    ratio = width / height
    if width >= height:
        width = _up(width, tile)
        return width, _up(int(width / ratio), tile)
    height = _up(height, tile)
    return _up(int(height * ratio), tile), height


def _up(length: int, tile: int) -> int:
    return math.ceil(length / tile) * tile
