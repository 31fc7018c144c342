"""Decodes images with Pillow and prepares them for a `Layout`, equal to transformers' PIL image processors.

It runs in `image_child.py` only, because files from clients may take any amount of memory and time.
"""

from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

from runtime.images.errors import ImageError
from runtime.images.layout import Layout, Size

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Found by content. Pillow's other decoders are seldom used, and some run other programs."""

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
WHITE = (255, 255, 255)
DEEP_MODES = {"I": 255 / 65535, "I;16": 255 / 65535, "I;16B": 255 / 65535, "I;16L": 255 / 65535, "F": 255.0}
"""Modes of more than 8 bits, with the factor that makes 8 bits of them. Pillow's own conversion would cut them off."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def decode(file: IO[bytes], max_pixels: int) -> Image.Image:
    """Returns the first frame as RGB, upright, on white if it is transparent. Raises `ImageError`."""
    Image.MAX_IMAGE_PIXELS = None  # checked here, before pixels are decoded
    try:
        with Image.open(file, formats=FORMATS) as image:
            _check_size(image.size, max_pixels)
            image.load()
            _check_size(image.size, max_pixels)  # a GIF's first frame may enlarge it
            return ImageOps.exif_transpose(_to_rgb(image))
    except (ImageError, MemoryError):
        raise
    except Image.UnidentifiedImageError:
        words = f"it is not an image of a known format ({', '.join(FORMATS)}), or is damaged at its beginning"
        raise ImageError(words) from None
    except Exception as error:  # decoders raise many kinds for damaged files
        raise ImageError(f"it cannot be decoded; it may be cut off or damaged ({str(error)[:100]})") from None


def make_views(image: Image.Image, layout: Layout) -> list[Pixels]:
    """Returns the views of a decoded image, each [height, width, 3]."""
    resized = image
    if layout.square_color is not None:
        resized = Image.new("RGB", (max(image.size), max(image.size)), layout.square_color)
        resized.paste(image, ((resized.width - image.width) // 2, (resized.height - image.height) // 2))
    for size in layout.resizes:
        resized = resized.resize(size, FILTERS[layout.filter])
    if layout.crop is not None:
        resized = _center(resized, layout.crop)
    if layout.pad is not None:
        resized = _center(resized, layout.pad)
    pixels = np.asarray(resized)
    if layout.tile is None:
        return [pixels]
    width, height = layout.tile
    lines, columns = layout.tiles
    views = [
        pixels[line * height : (line + 1) * height, column * width : (column + 1) * width]
        for line in range(lines)
        for column in range(columns)
    ]
    if layout.overview is not None:
        source = image if layout.overview_of == "original" else resized
        views.append(np.asarray(source.resize(layout.overview, FILTERS[layout.filter])))
    return views


def _check_size(size: Size, max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        words = f"it has {width} x {height} pixels, more than the limit of {max_pixels:,}"
        raise ImageError(f"{words}; make it smaller, or start the server with a larger --max-image-pixels")


def _center(image: Image.Image, size: Size) -> Image.Image:
    """Returns the middle of the image; black where `size` exceeds it."""
    left, top = (
        (old - new) // 2 if old >= new else -((new - old) // 2) for old, new in zip(image.size, size, strict=True)
    )
    return image.crop((left, top, left + size[0], top + size[1]))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in DEEP_MODES:
        return _to_eight_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    with_alpha = image.convert("RGBA")
    background = Image.new("RGB", image.size, WHITE)
    background.paste(with_alpha, mask=with_alpha.getchannel("A"))
    background.info = image.info  # its orientation
    return background


def _to_eight_bits(image: Image.Image) -> Image.Image:
    values = np.nan_to_num(np.array(image, np.float32), copy=False)
    values *= DEEP_MODES[image.mode]
    values += 0.5
    np.clip(values, 0, 255, out=values)
    gray = Image.fromarray(values.astype(np.uint8)).convert("RGB")
    gray.info = image.info
    return gray
