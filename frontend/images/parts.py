"""Images as bodies contain them, in the form that all APIs share."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

from messages.errors import RequestError, bad_request, quoted

Detail = Literal["auto", "low", "high", "original"]
DETAILS = get_args(Detail)

MAX_PIXELS = 1 << 40
"""The largest limit that a client may set."""

LIMITS_TEXT = "an object with min_pixels and max_pixels, to which images are resized"


BAD_URL = "invalid_image_url"


class PixelLimits(NamedTuple):
    """The area to which an image is resized, 0 for the model's own limits."""

    min_pixels: int = 0
    max_pixels: int = 0


class ImagePart(NamedTuple):
    """An image in a body: `url` is a `data:` URL, base64 without one, or an http(s) URL; `file_id` names a file.

    `param` is its place in the body, such as `messages[0].content[1]`, for errors.
    """

    param: str
    url: str = ""
    file_id: str = ""
    detail: Detail = "auto"
    limits: PixelLimits = PixelLimits()


def listed_images(urls: Sequence[str] | None, where: str = "images") -> list[ImagePart]:
    """Returns the images of a field that lists URLs or base64."""
    return [ImagePart(f"{where}[{index}]", url) for index, url in enumerate(urls or ())]


def read_detail(provided: str | None, where: str) -> Detail:
    """Returns a part's `detail`. Raises `RequestError` (400)."""
    if provided is None or provided in DETAILS:
        return cast("Detail", provided or "auto")
    raise bad_image(f"{where}.detail", f"it must be one of {', '.join(DETAILS)}, got {quoted(provided)}")


def read_limits(provided: dict[str, Any] | None, name: str = "mm_processor_kwargs") -> PixelLimits:
    """Returns the limits in a field of vLLM's API. Raises `RequestError` (400)."""
    for key, value in (provided or {}).items():
        if key not in PixelLimits._fields:
            raise bad_request(f"{name} may have {' and '.join(PixelLimits._fields)}, got {quoted(key)}", name)
        if type(value) is not int or not 1 <= value <= MAX_PIXELS:
            raise bad_request(f"{name}.{key} must be a whole number from 1 to {MAX_PIXELS}, got {quoted(value)}", name)
    limits = PixelLimits(**(provided or {}))
    if limits.max_pixels and limits.min_pixels > limits.max_pixels:
        raise bad_request(f"{name}.min_pixels must not be above max_pixels, got {quoted(provided)}", name)
    return limits


def bad_image(where: str, text: str, code: str | None = None) -> RequestError:
    """Returns a 400 about the image at this place in the body."""
    return bad_request(f"{where}: {text}", where.partition("[")[0], code)


def too_large(where: str, num_bytes: int, max_bytes: int) -> RequestError:
    """Returns the 400 for an image of this size; `num_bytes` may be a lower bound."""
    text = f"the image has {num_bytes} bytes or more, and may have {max_bytes} (--max-image-mb)"
    return bad_image(where, text, "image_too_large")
