"""Spans of a prompt: positions whose embeddings are given rows instead of those of their token ids."""

from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from messages.errors import bad_request

SpanKind = Literal["embeds"]
"""What the rows are: `embeds` are embeddings that the sender computed."""

DIGEST_BYTES = 16

MAX_SPANS = 256
"""Per prompt. Their total length is bounded by the context."""


class PromptSpan(msgspec.Struct, frozen=True, array_like=True):
    """The `length` positions from `start` on, whose ids are placeholders.

    `digest` (`DIGEST_BYTES`) identifies the rows: spans with equal digests have equal rows. So cached pages are shared
    by prompts with equal ids and equal spans alone. A position of a span counts for no penalty, is not drafted from,
    and has no logprob.
    """

    start: int
    length: int
    digest: bytes
    kind: SpanKind = "embeds"

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
