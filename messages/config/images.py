"""The flags of images: a section of the configuration (`messages/config/server.py`)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from messages.config.flag import Flag, NonNegativeInt, PositiveFloat, PositiveInt

HOST = r"([\w.-]+|\[[\da-fA-F:.]+\])(?::(\d{1,5}))?"
"""The pattern of a host in `image_urls`, and its port."""


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Images"""

    mmproj: Annotated[
        str,
        Flag(
            "GGUF file of the vision tower of a GGUF model (default: mmproj*.gguf next to it; none: serve text only)",
            metavar="FILE",
        ),
    ] = ""
    max_images: Annotated[int, Meta(ge=0, le=256), Flag("maximum number of images per request")] = 16
    max_image_mb: Annotated[
        PositiveFloat,
        Flag("maximum size of an image file in MiB; the images of all open requests may have 16 times this"),
    ] = 20.0
    max_image_pixels: Annotated[
        PositiveInt, Flag("maximum number of pixels of an image, in millions", metavar="MP")
    ] = 50
    image_max_tokens: Annotated[
        NonNegativeInt,
        Flag(
            "maximum number of tokens per image, by resizing it, for models whose images vary in size; fewer tokens "
            "are encoded faster (default: 0, the model's own limit)"
        ),
    ] = 0
    image_urls: Annotated[
        str,
        Flag(
            "hosts from which images are fetched: none (only data: URLs), public (any public address, ports 80 and "
            "443), or a comma-separated list of host names, each with :PORT if it has another port; a private address "
            "must be listed as an address",
            metavar="HOSTS",
        ),
    ] = "none"
    image_cache_mb: Annotated[PositiveFloat, Flag("memory per engine for the encodings of images, in MiB")] = 256.0
    encoder_workers: Annotated[
        int,
        Meta(ge=1, le=16),
        Flag("number of encoder processes; change it at run time with `launch.py scale encoder N`"),
    ] = 1


class VisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher found out about the model's vision tower; not flags."""

    family: str
    """The name of its rule in `runtime/images/registry.py` and of its tower in `scheduler_proc/computing/vision`."""
    processor: bytes
    """JSON: the fields of the image processor and of config.json that the rule reads, with the family's defaults."""
    mmproj: str = ""
    """The GGUF file of the tower; empty if its weights are in the model's directory."""
    row_width: int = 0
    """Numbers of a row of an encoding: the hidden size, times 1 + the number of layers with deepstack features."""
    has_axes: bool = False
    """Tokens of images have a position with three axes (M-RoPE)."""
    is_two_way: bool = False
    """Tokens of an image attend to each other in both directions."""
