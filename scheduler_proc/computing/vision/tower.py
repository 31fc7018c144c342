"""What the encoder process needs of a tower."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from runtime.images.layout import Layout


class Tower(Protocol):
    """A vision tower with its weights."""

    row_width: int

    def encode(self, views: Sequence[Tensor], layout: Layout) -> Tensor:
        """Returns the rows of one image, [layout.num_tokens, row_width], on the CPU, in the model's dtype.

        `views` are uint8 [H, W, 3] on the CPU, in the order of `Layout`. Raises `ValueError` if they do not fit it.
        """
        ...

    def num_bytes(self, max_patches: int) -> int:
        """Returns the memory of the weights and of encoding an image whose largest view has this many patches."""
        ...
