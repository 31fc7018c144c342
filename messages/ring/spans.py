"""Spans of a prompt: positions whose embeddings are given rows instead of those of their token ids."""

from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from messages.errors import bad_request

SpanKind = Literal["embeds", "image"]
"""What the rows are: `embeds` are embeddings that the sender computed, `image` is the encoding of an image."""

DIGEST_BYTES = 16

ALL_POSITIONS = -1

MAX_SPANS = 256
"""Per prompt. Their total length is bounded by the context."""


class PromptSpan(msgspec.Struct, frozen=True, array_like=True):
    """The `length` positions from `start` on, whose ids are placeholders.

    `digest` (`DIGEST_BYTES`) identifies the rows: spans with equal digests have equal rows. So cached pages are shared
    by prompts with equal ids and equal spans alone. A position of a span counts for no penalty, is not drafted from,
    and has no logprob.

    An image's span has all tokens from its first placeholder to its last one. Tokens with the id `placeholder`
    (`ALL_POSITIONS`: all) get the rows, in order; others, such as the ends of its lines, keep their embeddings.
    """

    start: int
    length: int
    digest: bytes
    kind: SpanKind = "embeds"
    image: int = -1
    """Its index in `UserMsg.images`."""
    placeholder: int = ALL_POSITIONS
    num_lines: int = 0
    num_columns: int = 0
    """The grid of the tokens of an image whose positions have three axes (M-RoPE); 0: positions have one axis.

    The token in line y and column x has the position (start, start + y, start + x), and the text behind the span
    continues at start + max(num_lines, num_columns).
    """
    is_two_way: bool = False
    """The tokens attend to each other in both directions, so one step computes them."""

    @property
    def end(self) -> int:
        return self.start + self.length


def check_spans(spans: Sequence[PromptSpan], num_prompt_tokens: int) -> None:
    """Raises `RequestError` unless the spans are in order, do not overlap, and lie within the prompt."""
    if len(spans) > MAX_SPANS:
        raise bad_request(f"a prompt may have at most {MAX_SPANS} spans, this one has {len(spans)}", "prompt")
    end = 0
    for index, span in enumerate(spans):
        if len(span.digest) != DIGEST_BYTES:
            raise bad_request(f"the digest of span {index} has {len(span.digest)} bytes, not {DIGEST_BYTES}", "prompt")
        if span.length < 1 or span.start < end or span.end > num_prompt_tokens:
            text = f"spans must be in order, not overlap, and lie within the prompt of {num_prompt_tokens} tokens"
            raise bad_request(f"span {index} has {span.length} positions from {span.start} on: {text}", "prompt")
        end = span.end


def without_spans(token_ids: "array[int]", spans: Sequence[PromptSpan]) -> "array[int]":
    """Returns the ids that are text: `token_ids` itself if there are no spans."""
    if not spans:
        return token_ids
    text, end = token_ids[:0], 0
    for span in spans:
        text += token_ids[end : span.start]
        end = span.end
    return text + token_ids[end:]
