"""LLaVA-NeXT, Granite Vision and LLaVA-OneVision: tiles of the image on a black canvas, then the whole image.

The tokens of the canvas around the image are left out, and each remaining line of tokens gets a mark.
"""

import math
from dataclasses import replace
from typing import Self

from runtime.images.families.llava import mean_color, num_patches
from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, UnsupportedError, count, field, shared_fields

MAX_CANVASES = 256


class LlavaNext(Rule, frozen=True, kw_only=True):
    """`canvases` are widths and heights. `tile_tokens`: those of the whole image. `tile_cells`: on a tile's side.

    `max_tiles`: features of more tiles are made smaller (LLaVA-OneVision), 0 if they are not. `tiles_one_image`: an
    image among several is not divided, but padded to a square with the mean color.
    """

    canvases: tuple[Size, ...]
    tile: int
    tile_cells: int
    tile_tokens: int
    max_tiles: int
    tiles_one_image: bool

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        is_onevision = config.get("model_type") == "llava_onevision"
        canvases = field(processor, "image_grid_pinpoints", list[Size])
        side = count(processor, "size.shortest_edge", count(processor, "size.height", 1 << 15))
        tile = count(processor, "crop_size.height", side)
        if tile != side or any(length % tile or not 0 < length <= 1 << 15 for size in canvases for length in size):
            raise UnsupportedError("images whose canvases are not made of whole tiles are not supported")
        patch = count(config, "vision_config.patch_size", 14)
        aspect = field(config, "vision_aspect_ratio", str, "anyres_max_9" if is_onevision else "")
        return cls(
            canvases=tuple((width, height) for height, width in canvases[:MAX_CANVASES]),
            tile=tile,
            tile_cells=tile // patch,
            tile_tokens=num_patches(config, (tile, tile)),
            max_tiles=int(aspect.removeprefix("anyres_max_") or 0) if is_onevision else 0,
            tiles_one_image=is_onevision,
            **shared_fields(processor, config, "<image>", part="<image>\n"),
        )

    def limit(self, budget: Budget, num_images: int) -> Budget:
        return replace(budget, max_tokens=self.tile_tokens + 1) if self.tiles_one_image and num_images > 1 else budget

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """A smaller budget means smaller canvases, and none at all for LLaVA-OneVision."""
        budget = self.limit(budget, num_images)
        canvases = list(self.canvases)
        layout, canvas = self._layout(size, canvases)
        while len(canvases) > 1 and (
            0 < budget.max_tokens < layout.num_tokens or 0 < budget.max_pixels < canvas[0] * canvas[1]
        ):
            canvases.remove(canvas)
            layout, canvas = self._layout(size, canvases)
        if self.tiles_one_image and 0 < budget.max_tokens < max(layout.num_tokens, self.tile_tokens + 2):
            view, color = (self.tile, self.tile), mean_color(self.image_mean)
            return Layout((view,), self.filter, self.tile_tokens + 1, square_color=color)
        return layout

    def _layout(self, size: Size, canvases: list[Size]) -> tuple[Layout, Size]:
        canvas = _best_canvas(size, canvases)
        lines, columns = self._grid(size, canvas)
        num_tokens = lines * columns + lines
        if self.max_tiles:
            shrunk = math.sqrt(lines * columns / (self.max_tiles * self.tile_cells**2))
            if shrunk > 1.1:
                num_tokens = int(lines // shrunk) * (int(columns // shrunk) + 1)
        tile = self.tile, self.tile
        layout = Layout(
            (_fit_into(size, canvas),),
            self.filter,
            num_tokens + self.tile_tokens,
            pad=canvas,
            tile=tile,
            overview=tile,
            grid=(lines, columns),
        )
        return layout, canvas

    def _grid(self, size: Size, canvas: Size) -> tuple[int, int]:
        """Returns lines and columns of the cells that are kept: those of the canvas without its black margins."""
        width, height = size
        columns, lines = (length // self.tile * self.tile_cells for length in canvas)
        if width / height > columns / lines:
            kept = int(round(height * (columns / width), 7))
            return lines - (lines - kept) // 2 * 2, columns
        kept = int(round(width * (lines / height), 7))
        return lines, columns - (columns - kept) // 2 * 2


def _best_canvas(size: Size, canvases: list[Size]) -> Size:
    """Returns the canvas on which most of the image's pixels can be shown; of several, the smallest."""
    width, height = size

    def rank(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[0] / width, canvas[1] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - canvas[0] * canvas[1]

    return max(canvases, key=rank)


def _fit_into(size: Size, canvas: Size) -> Size:
    width, height = size
    scale_x, scale_y = canvas[0] / width, canvas[1] / height
    if scale_x < scale_y:
        return canvas[0], min(math.ceil(height * scale_x), canvas[1])
    return min(math.ceil(width * scale_y), canvas[0]), canvas[1]
