"""InternVL 3 and 3.5: tiles in the grid whose shape is nearest to the image's, then the whole image."""

from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, count, field, shared_fields

MAX_TILES = 64
OWN_MARKER = "<image>"


class InternVl(Rule, frozen=True, kw_only=True):
    tile: Size
    tile_tokens: int
    min_tiles: int
    max_tiles: int

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        """`config` is that of transformers or, with an `llm_config`, InternVL's own."""
        side = count(config, "force_image_size", 448)
        tile = count(processor, "size.width", side), count(processor, "size.height", side)
        patches = count(config, "vision_config.patch_size", 14) if "force_image_size" in config else 14
        scale = field(config, "downsample_ratio", float, 0.5)
        default = round((tile[0] // patches * scale) * (tile[1] // patches * scale))
        return cls(
            tile=tile,
            tile_tokens=count(processor, "image_seq_length", default),
            min_tiles=count(processor, "min_patches", count(config, "min_dynamic_patch", 1)),
            max_tiles=min(MAX_TILES, count(processor, "max_patches", count(config, "max_dynamic_patch", 12))),
            **shared_fields(processor, config, "<IMG_CONTEXT>", part="<IMG_CONTEXT>\n"),
        )

    def marker_in(self, template: str) -> str:
        """The templates of InternVL's own checkpoints write a shorter one."""
        return OWN_MARKER if OWN_MARKER in template and self.marker not in template else self.marker

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A smaller budget means fewer tiles."""
        max_tiles = self.max_tiles
        if budget.max_tokens:
            max_tiles = max(1, min(max_tiles, budget.max_tokens // self.tile_tokens - 1))
        if budget.max_pixels:
            max_tiles = max(1, min(max_tiles, budget.max_pixels // (self.tile[0] * self.tile[1])))
        columns, lines = nearest_grid(size, self.tile, min(self.min_tiles, max_tiles), max_tiles)
        if lines * columns == 1:
            return Layout((self.tile,), self.filter, self.tile_tokens)
        resized = columns * self.tile[0], lines * self.tile[1]
        num_tokens = (lines * columns + 1) * self.tile_tokens
        return Layout((resized,), self.filter, num_tokens, tile=self.tile, overview=self.tile)

    def text(self, layout: Layout) -> str:
        return f"<img>{super().text(layout)}</img>"


def nearest_grid(size: Size, tile: Size, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """Returns columns and lines of the grid whose aspect ratio is nearest to that of `size`.

    Among equally near grids, a larger one is chosen as long as the image has more than half of its pixels.
    """
    grids = [
        (columns, lines)
        for columns in range(1, max_tiles + 1)
        for lines in range(1, max_tiles // columns + 1)
        if columns * lines >= min_tiles
    ]
    width, height = size
    best, best_difference = (1, 1), float("inf")
    for columns, lines in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / lines)
        is_filled = width * height > 0.5 * tile[1] * tile[0] * columns * lines
        if difference < best_difference or (difference == best_difference and is_filled):
            best, best_difference = (columns, lines), difference
    return best
