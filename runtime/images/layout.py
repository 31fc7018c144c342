"""The layout of an image: how it is resized and cut, and how many tokens it becomes. It follows from its size alone.

The pixels are made from it by `pixels.py`.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

Size = tuple[int, int]
"""Width and height in pixels."""

Filter = Literal["bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Layout:
    """The image is resized to each of `resizes` in turn, cropped to the middle `crop`, and centered on a black `pad`.

    Without `tile`, the result is the only view. With it, the views are its tiles in rows from the top left, then the
    overview: the original (`overview_of`), or the image as resized, resized to `overview`. All views of a tiled image
    have the size of `tile`.
    """

    resizes: tuple[Size, ...]
    filter: Filter
    num_tokens: int
    """Tokens with rows of the encoding."""
    crop: Size | None = None
    pad: Size | None = None
    tile: Size | None = None
    overview: Size | None = None
    overview_of: Literal["original", "resized"] = "original"
    grid: tuple[int, int] = (0, 0)
    """Lines and columns of tokens, for models whose positions have three axes and for those with marks of lines."""

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


class ImageRule(Protocol):
    """The rule of a model, made from `VisionFacts.processor`."""

    marker: str
    """The text that the chat template writes in place of an image."""
    part: str
    """`marker` with all that a chat template writes for an image, for prompts without a template."""
    placeholder: str
    """The token whose embedding is replaced by a row of the encoding."""

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """Returns the layout of an image in a prompt of `num_images`. Raises `ValueError` for an unusable size."""
        ...

    def text(self, layout: Layout) -> str:
        """Returns the text that replaces `marker`: `layout.num_tokens` times `placeholder`, with marks of tiles."""
        ...
