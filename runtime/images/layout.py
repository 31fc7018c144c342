"""The layout of an image: how it is resized and cut, and how many tokens it becomes. It follows from its size alone.

The pixels are made from it by `pixels.py`.
"""

from dataclasses import dataclass
from typing import Literal

Size = tuple[int, int]
"""Width and height in pixels."""

Color = tuple[int, int, int]
"""Red, green and blue."""

Filter = Literal["bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Layout:
    """The image is resized to each of `resizes` in turn, cropped to the middle `crop`, and centered on a black `pad`.

    With a `square_color`, it is centered on a square of that color before.

    Without `tile`, the result is the only view. With it, the views are its tiles in rows from the top left, then the
    overview, if there is one: the original (`overview_of`), or the image as resized, resized to `overview`.
    """

    resizes: tuple[Size, ...]
    filter: Filter
    num_tokens: int
    """Tokens with rows of the encoding."""
    square_color: Color | None = None
    crop: Size | None = None
    pad: Size | None = None
    tile: Size | None = None
    overview: Size | None = None
    overview_of: Literal["original", "resized"] = "original"
    grid: tuple[int, int] = (0, 0)
    """Lines and columns of tokens: of the only view, of the overview of LFM2-VL, and of all tiles without black margins
    of LLaVA-NeXT and LLaVA-OneVision (before features are made smaller)."""

    @property
    def tiles(self) -> tuple[int, int]:
        """Lines and columns of tiles; (0, 0) without tiles."""
        if self.tile is None:
            return 0, 0
        width, height = self.pad or self.resizes[-1]
        return height // self.tile[1], width // self.tile[0]


@dataclass(frozen=True)
class Budget:
    """The limits of one image, 0 for the model's own: its area in pixels and its number of tokens."""

    min_pixels: int = 0
    max_pixels: int = 0
    max_tokens: int = 0


MAX_RESIZED_PIXELS = 1 << 26
"""The largest image that is made on the way to the views, so that the resizing of a strip stays cheap."""


def check_cost(layout: Layout) -> None:
    """Raises `ValueError` if the image would become too large before it is cropped."""
    if any(width * height > MAX_RESIZED_PIXELS for width, height in layout.resizes):
        raise ValueError("one of its sides is too long compared with the other")
