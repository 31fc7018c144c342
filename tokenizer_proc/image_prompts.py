"""Prompts with images: the tokens of each image are written into the text, and found again in its ids."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from messages.config.images import VisionFacts
from messages.errors import bad_request
from messages.ring.images import ImageInput
from messages.ring.requests import ChatPrompt, EncodeMsg, TokenizeMsg
from messages.ring.spans import PromptSpan
from runtime.images.layout import Budget, Layout, check_cost
from runtime.images.registry import read_rule
from tokenizer_proc.image_forms import ImagePieces, number_images

NO_IMAGE = -1


@dataclass(frozen=True)
class Run:
    """Placeholders in a text, one after another: those of an image, or of the client's words (`NO_IMAGE`)."""

    num_placeholders: int
    image: int = NO_IMAGE
    layout: Layout | None = None


@dataclass(frozen=True)
class PromptText:
    """A prompt as text, with the tokens of its images. `runs` has all placeholders in it if it has images."""

    text: str
    runs: tuple[Run, ...] = ()


def budget_of(image: ImageInput) -> Budget:
    return Budget(image.min_pixels, image.max_pixels, image.max_tokens)


class ImagePrompts:
    """`vision` is `None` for a model that reads no images."""

    def __init__(self, vision: VisionFacts | None, max_model_len: int, id_of: Callable[[str], int | None]):
        self._vision = vision
        self._rule = None if vision is None else read_rule(vision)
        self._max_model_len = max_model_len
        self._placeholder_id = None if self._rule is None else id_of(self._rule.placeholder)

    def numbered(self, message: TokenizeMsg | EncodeMsg) -> ChatPrompt | None:
        """Returns the message's chat, with numbers of its images. Raises `RequestError` if it may have no images."""
        if not message.images:
            return message.chat
        if self._rule is None:
            raise bad_request("image input is not supported by this model", message.images[0].param)
        if self._placeholder_id is None:
            raise bad_request(f"The model's tokenizer lacks the token {self._rule.placeholder!r} of images", "messages")
        if message.chat is not None:
            return number_images(message.chat)
        if message.prompt_text is None:
            raise bad_request("A prompt of token ids may have no images", message.images[0].param)
        if isinstance(message, TokenizeMsg) and (message.infill is not None or message.sampling_params.pooling):
            raise bad_request("A text to infill or to pool may have no images", message.images[0].param)
        return None

    def expand_text(self, text: str | None, images: Sequence[ImageInput]) -> PromptText | None:
        """Returns a text that is no chat, if there is one. Its images come first unless it has a marker for each."""
        if text is None or self._rule is None or not images:
            return None if text is None else PromptText(text)
        pieces = text.split(self._rule.marker)
        if len(pieces) != len(images) + 1:
            before, after = self._rule.part.split(self._rule.marker)
            pieces = [before, *[after + before] * (len(images) - 1), after + text]
        return self.expand(ImagePieces(tuple(pieces), tuple(range(len(images)))), images)

    def expand(self, rendered: str | ImagePieces, images: Sequence[ImageInput]) -> PromptText:
        """Returns the text with all tokens of the images. Raises `RequestError` for an image that cannot be used."""
        if isinstance(rendered, str):
            return PromptText(rendered)
        return self._join(rendered, list(self._layouts([images[index] for index in rendered.images])))

    def limited(self, images: tuple[ImageInput, ...]) -> tuple[ImageInput, ...]:
        """Returns the images with the limits that follow from their number, so that their digests cover these, too."""
        if self._rule is None or len(images) < 2:
            return images
        limits = [self._rule.limit(budget_of(image), len(images)) for image in images]
        return tuple(
            image if limit == budget_of(image) else msgspec.structs.replace(image, max_tokens=limit.max_tokens)
            for image, limit in zip(images, limits, strict=True)
        )

    def check(self, prompt: PromptText, images: Sequence[ImageInput]) -> None:
        """Raises `RequestError` unless the prompt has all images and they fit the context."""
        used = [run for run in prompt.runs if run.image != NO_IMAGE]
        if len(used) != len(images):
            raise bad_request(f"The chat template shows {len(used)} of the {len(images)} images", "messages")
        num_tokens = sum(run.num_placeholders for run in used)
        if num_tokens >= self._max_model_len:
            words = f"This model's maximum context length is {self._max_model_len} tokens, and the images alone have"
            raise bad_request(f"{words} {num_tokens}", "messages", "context_length_exceeded")

    def find_spans(self, ids: "array[int]", prompt: PromptText, images: Sequence[ImageInput]) -> tuple[PromptSpan, ...]:
        """Returns the spans of the images in the ids of the whole text."""
        if not prompt.runs:
            return ()
        places = [position for position, token_id in enumerate(ids) if token_id == self._placeholder_id]
        if len(places) != sum(run.num_placeholders for run in prompt.runs):
            words = "do not match its tokenizer: it does not keep them as tokens of their own"
            raise RuntimeError(f"the placeholders of the model's images {words}")
        spans: list[PromptSpan] = []
        begin = 0
        for run in prompt.runs:
            end = begin + run.num_placeholders
            if run.layout is not None:
                spans.append(self._span(run, run.layout, (places[begin], places[end - 1]), images[run.image]))
            begin = end
        return tuple(spans)

    def _layouts(self, images: Sequence[ImageInput]) -> Iterator[Layout]:
        assert self._rule is not None
        for image in images:
            try:
                layout = self._rule.layout((image.width, image.height), budget_of(image), 1)
                check_cost(layout)
                yield layout
            except ValueError as error:
                size = f"{image.width} x {image.height} pixels"
                raise bad_request(f"The image of {size} cannot be used: {error}", image.param) from None

    def _join(self, rendered: ImagePieces, layouts: Sequence[Layout]) -> PromptText:
        assert self._rule is not None
        texts: list[str] = []
        runs: list[Run] = []
        for text, index, layout in zip_longest(rendered.texts, rendered.images, layouts):
            texts.append(text)
            if num_words := text.count(self._rule.placeholder):
                runs.append(Run(num_words))
            if layout is not None:
                texts.append(self._rule.text(layout))
                runs.append(Run(layout.num_tokens, index, layout))
        return PromptText("".join(texts), tuple(runs))

    def _span(self, run: Run, layout: Layout, ends: tuple[int, int], image: ImageInput) -> PromptSpan:
        assert self._vision is not None
        assert self._placeholder_id is not None
        lines, columns = layout.grid if self._vision.has_axes else (0, 0)
        return PromptSpan(
            start=ends[0],
            length=ends[1] - ends[0] + 1,
            digest=image.encoding_digest(),
            kind="image",
            image=run.image,
            placeholder=self._placeholder_id,
            num_lines=lines,
            num_columns=columns,
            is_two_way=self._vision.is_two_way,
        )
