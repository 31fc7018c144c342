"""Draft tokens: who proposes what may come next, and how much of it was right.

A sampled token is a function of the tokens before it, the seed and its position, whatever else is in the step. So a
draft token is right exactly where it equals the token that is sampled in its place, and drafts change no output.
"""

from array import array
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from messages.columns import INT32
from scheduler_proc.deciding.block_allocator import BlockAllocator
from scheduler_proc.deciding.continuations import Continuation
from scheduler_proc.deciding.ngrams import MAX_MATCH, NgramIndex
from scheduler_proc.deciding.requests import Req

MAX_DRAFTS_BY_MATCH = {2: 2, 3: 4}
"""Most draft tokens after a match of so many tokens; after a longer one there are as many as are wanted."""

NONE: "array[int]" = array(INT32)


class Drafter(Protocol):
    def propose(self, req: Req, max_tokens: int) -> "array[int]":
        """Returns at most `max_tokens` int32 ids of the vocabulary that may follow the request's tokens; none is good.

        Called before each step in which a row could have some.
        """
        ...


class NgramDrafter:
    """Proposes at most `num_speculative_tokens` tokens, as in prompt lookup decoding (Saxena, 2023).

    A request's index lives as long as the request. With a `cache`, what another request had behind the very same tokens
    goes before a match of fewer than `MAX_MATCH`.
    """

    def __init__(self, num_speculative_tokens: int, cache: BlockAllocator | None = None):
        self._max_drafts = num_speculative_tokens
        self._cache = cache

    def propose(self, req: Req, max_tokens: int) -> "array[int]":
        token_ids, pending = req.token_ids, req.pending
        if pending.ngrams is None:
            pending.ngrams = NgramIndex()
        start, length = pending.ngrams.find(token_ids)
        if length < MAX_MATCH and self._cache is not None:
            others = self._find_continuation(self._cache, req)
            if others:
                return others[: min(max_tokens, self._max_drafts)]
        if not start:
            return NONE
        num_drafts = min(max_tokens, self._max_drafts, MAX_DRAFTS_BY_MATCH.get(length, max_tokens))
        drafts = token_ids[start : start + num_drafts]
        while len(drafts) < num_drafts:  # the match reaches to the end: what lies between goes on again and again
            drafts += drafts[: num_drafts - len(drafts)]
        return drafts

    def _find_continuation(self, cache: BlockAllocator, req: Req) -> "array[int]":
        pending = req.pending
        if pending.continuation is None:
            pending.continuation = Continuation(cache.page_size)
        return pending.continuation.find(req.token_ids, partial(cache.find_continuation, req))


def num_accepted(draft_ids: "array[int]", sampled: Sequence[int]) -> int:
    """Returns how many of the tokens `sampled` count: those after right draft tokens, and the one that begins.

    `sampled[i]` comes after the first i draft tokens; the last ones may be missing.
    """
    for index, draft_id in enumerate(draft_ids[: len(sampled)]):
        if sampled[index] != draft_id:
            return index + 1
    return min(len(sampled), len(draft_ids) + 1)
