"""LLaVA 1.5: the middle square of the image, all images with the same number of tokens."""

from typing import Self

from runtime.images.layout import Budget, Color, Layout, Size
from runtime.images.rule import Fields, Rule, count, field, shared_fields


class Llava(Rule, frozen=True, kw_only=True):
    """`shortest_edge` is 0 if images are stretched to `view` instead of cropped."""

    shortest_edge: int
    view: Size
    num_tokens: int
    is_padded: bool
    """Images are put on a square of the mean color first."""

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        is_cropped = field(processor, "do_center_crop", bool, False)
        name = "crop_size" if is_cropped else "size"
        width, height = count(processor, f"{name}.width"), count(processor, f"{name}.height")
        return cls(
            shortest_edge=count(processor, "size.shortest_edge") if is_cropped else 0,
            view=(width, height),
            num_tokens=num_patches(config, (width, height)),
            is_padded=field(processor, "do_pad", bool, False),
            **shared_fields(processor, config, "<image>", part="<image>\n"),
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        color = mean_color(self.image_mean) if self.is_padded else None
        if not self.shortest_edge:
            return Layout((self.view,), self.filter, self.num_tokens, square_color=color)
        width, height = size = (max(size), max(size)) if self.is_padded else size
        longer = int(self.shortest_edge * max(size) / min(size))
        resized = (self.shortest_edge, longer) if width <= height else (longer, self.shortest_edge)
        return Layout((resized,), self.filter, self.num_tokens, square_color=color, crop=self.view)


def mean_color(mean: tuple[float, float, float]) -> Color:
    return int(mean[0] * 255), int(mean[1] * 255), int(mean[2] * 255)


def num_patches(config: Fields, view: Size) -> int:
    """Returns the number of rows of a view: of all patches, and of the class token if it is selected, too."""
    patch = count(config, "vision_config.patch_size", 14)
    has_class = field(config, "vision_config.model_type", str, "clip_vision_model") == "clip_vision_model"
    is_selected = field(config, "vision_feature_select_strategy", str, "default") == "full"
    return (view[0] // patch) * (view[1] // patch) + has_class + is_selected - 1
