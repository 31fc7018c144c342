"""What the rules of all families share. A rule is read from a model's files once; processes pass it on as JSON."""

from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast

import msgspec

from messages.errors import errors_as
from runtime.images.layout import Budget, Filter, Layout, Size

T = TypeVar("T")


class UnsupportedError(ValueError):
    """The model prepares images in a way that is not supported."""


Fields = Mapping[str, Any]

FILTERS: dict[int, Filter] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which image processors call `resample`."""

MAX_SIDE = 1 << 15
"""Pixels: the maximum of a side that a model's files may request."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A model's rule, with the fields that decide its layouts. A pixel from 0 to 1 becomes (pixel - mean) / std."""

    marker: str
    """The text that the chat template writes in place of an image."""
    placeholder: str
    """The token whose embedding is replaced by a row of the encoding."""
    part: str
    """`marker` with all that a chat template writes for an image, for prompts without a template."""
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    filter: Filter
    hidden_size: int
    """Numbers of a row of the decoder's embedding."""
    has_axes: bool = False
    is_two_way: bool = False
    """As in `VisionFacts`."""

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        """Returns the rule of a model from the fields of its processor's files and of its whole config.json.

        `config` has the `hidden_size` of the decoder at its top.

        Raises `ValueError` for fields that are wrong or not supported.
        """
        raise NotImplementedError

    @property
    def row_width(self) -> int:
        """Numbers of a row of an encoding."""
        return self.hidden_size

    def marker_in(self, template: str) -> str:
        """Returns the marker that this chat template writes."""
        return self.marker

    def limit(self, budget: Budget, num_images: int) -> Budget:
        """Returns the budget of each image in a prompt of `num_images`; with it, their layouts depend on no number."""
        return budget

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        """Returns the layout of an image in a prompt of `num_images`. Raises `ValueError` for an unusable size."""
        raise NotImplementedError

    def text(self, layout: Layout) -> str:
        """Returns the text that replaces `marker`: `layout.num_tokens` times `placeholder`, with marks of tiles."""
        return self.placeholder * layout.num_tokens


def shared_fields(
    processor: Fields, config: Fields, marker: str, *, placeholder: str = "", part: str = ""
) -> dict[str, Any]:
    """Returns the fields of `Rule` that all families read in the same way, or have in their own text."""
    resample = field(processor, "resample", int)
    if resample not in FILTERS:
        raise ValueError(f"resample {resample} is not supported, only {', '.join(map(str, FILTERS))}")
    is_normalized = processor.get("do_normalize", True)
    return {
        "marker": marker,
        "placeholder": placeholder or marker,
        "part": part or marker,
        "image_mean": field(processor, "image_mean", tuple[float, float, float]) if is_normalized else (0.0,) * 3,
        "image_std": field(processor, "image_std", tuple[float, float, float]) if is_normalized else (1.0,) * 3,
        "filter": FILTERS[resample],
        "hidden_size": count(config, "hidden_size"),
    }


def text_config(config: Fields) -> Fields:
    """Returns the decoder's fields of a config.json."""
    return next((config[name] for name in ("text_config", "llm_config") if isinstance(config.get(name), dict)), config)


def field(fields: Fields, path: str, kind: type[T], default: T | None = None) -> T:
    """Returns the value at a path such as `size.longest_edge`. Raises `ValueError` if it is missing or no `kind`."""
    value: Any = fields
    for name in path.split("."):
        value = cast("Fields", value).get(name) if isinstance(value, Mapping) else None
    if value is None:
        if default is None:
            raise ValueError(f"{path} is missing")
        return default
    with errors_as(ValueError, path, of=msgspec.ValidationError):
        return msgspec.convert(value, kind)


def count(fields: Fields, path: str, default: int | None = None) -> int:
    """Returns the positive whole number at a path. Raises `ValueError`."""
    number = field(fields, path, int, default)
    if not 1 <= number <= MAX_SIDE**2:
        raise ValueError(f"{path} is {number}, not a number from 1 to {MAX_SIDE**2}")
    return number
