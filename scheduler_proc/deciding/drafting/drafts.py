"""Draft tokens: who proposes what may come next, and how much of it was right.

A sampled token is a function of the tokens before it, the seed and its position, whatever else is in the step. So a
draft token is right exactly where it equals the token that is sampled in its place, and drafts change no output.
"""

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from messages.columns import INT32
from scheduler_proc.deciding.drafting.continuations import Continuation
from scheduler_proc.deciding.drafting.match_rates import CONTINUATION, KINDS, MIN_LENGTH, MatchRates
from scheduler_proc.deciding.drafting.ngrams import NgramMatch
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Req


class Draft(NamedTuple):
    """Tokens (int32 ids) that may come next; `chances` are the probabilities of each if those before it are right."""

    token_ids: "array[int]"
    chances: Sequence[float]


NO_DRAFT = Draft(array(INT32), ())

SPARSE_CHANCE, SPARSE_TOKENS = 0.28, 4
"""Where a match of two tokens is less likely right than this, and none is found, the next search is so many tokens
later. A search costs a part of a short step, and text that begins to repeat is found only a little later."""


class Drafter(Protocol):
    def propose(self, req: Req, max_tokens: int) -> Draft:
        """Returns at most `max_tokens` (at least 1) tokens that may follow the request's; it may be none.

        Called before each step in which a row could have draft tokens, once it has `DraftState.idle_until` tokens.
        """
        ...


class NgramDrafter:
    """Proposes at most `num_speculative_tokens` tokens, as in prompt lookup decoding (Saxena, 2023).

    What a request's match and continuation know lives as long as the request. With a `cache`, what another request had
    behind the very same tokens goes before a match that is less likely right. Where the shortest matches are mostly
    wrong, and there is none, the next one is looked for some tokens later.
    """

    def __init__(self, num_speculative_tokens: int, cache: BlockAllocator | None = None):
        self._max_drafts = num_speculative_tokens
        self._cache = cache
        self._rates = MatchRates()

    def propose(self, req: Req, max_tokens: int) -> Draft:
        token_ids, state = req.token_ids, req.pending.draft
        match = state.match
        if match is None:
            match = state.match = NgramMatch(MatchRates(self._rates))
        match.follow(token_ids)
        num_drafts = min(max_tokens, self._max_drafts)
        continuation = state.continuation
        if self._cache is not None and (continuation is None or len(token_ids) >= continuation.idle_until):
            if continuation is None:
                continuation = state.continuation = Continuation(self._cache.page_size, match.rates)
            others = continuation.find(token_ids, partial(self._cache.find_continuation, req))[:num_drafts]
            chance = match.rates.chance(CONTINUATION)
            if others and not (match.place and match.rates.chance(KINDS[match.length]) >= chance):
                return Draft(others, [chance] * len(others))
        if match.place:
            return Draft(match.next_ids(token_ids, num_drafts), match.chances(num_drafts))
        if match.rates.chance(KINDS[MIN_LENGTH]) < SPARSE_CHANCE:
            state.idle_until = len(token_ids) + SPARSE_TOKENS
        return NO_DRAFT


def num_accepted(draft_ids: "array[int]", sampled: Sequence[int]) -> int:
    """Returns how many of the tokens `sampled` count: those after right draft tokens, and the one that begins.

    `sampled[i]` comes after the first i draft tokens; the last ones may be missing.
    """
    for index, draft_id in enumerate(draft_ids[: len(sampled)]):
        if sampled[index] != draft_id:
            return index + 1
    return min(len(sampled), len(draft_ids) + 1)
