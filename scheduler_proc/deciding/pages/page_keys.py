"""The keys by which pages are found: 4 bytes per token.

A key is the ids of the page's tokens. If some of them belong to a span, a digest of the ids and of these spans is in
their place: negative int32s, which no ids are. So a page with one token of a span has a key as safe as any other, and
the radix tree, the page journal and the tiers need not know of spans.
"""

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_256

from messages.columns import INT32
from messages.ring.spans import DIGEST_BYTES, PromptSpan

MIN_PAGE_TOKENS = 4
"""The digest has 31 bits per token of the page. Smaller pages would make collisions possible."""

SIGN = -(1 << 31)

PLACE = struct.Struct(f"<ii{DIGEST_BYTES}s")
"""A span in a page: where it begins, relative to the page, its length and its digest. Its kind follows."""

MAX_REMEMBERED = 4096


def page_key(token_ids: "array[int]", spans: Sequence[PromptSpan], start: int, end: int, page_size: int) -> bytes:
    """Returns the keys of the pages with the tokens `start` to `end` (exclusive); `start` is the first of its page.

    The key of a page that is not full is that of no full page if it has tokens of a span.
    """
    key = token_ids[start:end].tobytes()
    if not spans:
        return key
    by_page: dict[int, bytes] = {}
    for span in spans:
        first, last = max(start, span.start), min(end, span.end)
        for page in range(first // page_size, -(-last // page_size)) if first < last else ():
            place = PLACE.pack(span.start - page * page_size, span.length, span.digest) + span.kind.encode() + b"\0"
            by_page[page] = by_page.get(page, b"") + place
    parts, item_bytes = bytearray(key), token_ids.itemsize
    for page, places in by_page.items():
        begin = (page * page_size - start) * item_bytes
        own = slice(begin, begin + page_size * item_bytes)
        parts[own] = _digest(key[own], places)
    return bytes(parts)


def two_way_at(spans: Sequence[PromptSpan], position: int) -> PromptSpan | None:
    """Returns the span with attention in both directions that a border before this position would divide."""
    return next((span for span in spans if span.is_two_way and span.start < position < span.end), None)


def leading_ids(key: "array[int]") -> "array[int]":
    """Returns the ids of a key before its first page with tokens of a span."""
    return key if not key or min(key) >= 0 else key[: next(index for index, word in enumerate(key) if word < 0)]


@lru_cache(MAX_REMEMBERED)
def _digest(ids: bytes, places: bytes) -> bytes:
    """Returns as many bytes as `ids` has, all of whose int32s are negative."""
    words = array(INT32, shake_256(ids + places).digest(len(ids)))
    return array(INT32, [word | SIGN for word in words]).tobytes()
