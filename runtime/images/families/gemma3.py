"""Gemma 3: every image is stretched to a square and has the same number of tokens, which attend in both directions."""

from typing import Self

from runtime.images.layout import Budget, Layout, Size
from runtime.images.rule import Fields, Rule, UnsupportedError, count, field, shared_fields

BEGIN, SOFT, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


class Gemma3(Rule, frozen=True, kw_only=True):
    size: Size
    num_tokens: int
    is_two_way: bool = True

    @classmethod
    def read(cls, processor: Fields, config: Fields) -> Self:
        if field(processor, "do_pan_and_scan", bool, False):
            raise UnsupportedError("pan and scan (do_pan_and_scan) is not supported")
        return cls(
            size=(count(processor, "size.width"), count(processor, "size.height")),
            num_tokens=count(processor, "image_seq_length", count(config, "mm_tokens_per_image", 256)),
            **shared_fields(processor, config, BEGIN, placeholder=SOFT),
        )

    def layout(self, size: Size, budget: Budget, num_images: int) -> Layout:
        return Layout((self.size,), self.filter, self.num_tokens)

    def text(self, layout: Layout) -> str:
        return f"\n\n{BEGIN}{super().text(layout)}{END}\n\n"
