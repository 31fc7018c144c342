"""Drafters, which propose draft tokens."""

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from messages.columns import INT32
from messages.ring.spans import without_spans
from scheduler_proc.deciding.drafting.continuations import Continuation
from scheduler_proc.deciding.drafting.match_rates import CONTINUATION, KINDS, MIN_LENGTH, MatchRates
from scheduler_proc.deciding.drafting.ngrams import NgramMatch
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Req


class Draft(NamedTuple):
    """Tokens (int32 ids) that may come next; `chances` are the probabilities of each if those before it are right.

    There are none before the request has `idle_until` tokens.
    """

    token_ids: "array[int]"
    chances: Sequence[float]
    idle_until: int = 0


NO_DRAFT = Draft(array(INT32), ())

SPARSE_CHANCE, MIN_SPARSE, MAX_SPARSE = 0.28, 4, 32
"""If a match of two tokens is less likely right than `SPARSE_CHANCE` and there is none, or `MAX_SPARSE` searches have
found none, the next search is `MIN_SPARSE` tokens later, and after each further search in vain twice as many, at most
`MAX_SPARSE`. Then a match of two tokens must come true for `MIN_SPARSE` tokens before it counts. Steps are planned
ahead meanwhile, searches take no time between them, and repetitions are found only a little later."""


class Drafter(Protocol):
    def propose(self, req: Req, max_tokens: int) -> Draft:
        """Returns at most `max_tokens` (at least 1) tokens that may follow the request's; it may be none.

        Called before each step in which a row could have draft tokens, once it has `Draft.idle_until` tokens.
        """
        ...


class _Search:
    """The searches for one request's next tokens.

    `match` is an earlier occurrence of its last tokens, `continuation` what followed them in other requests, `sparse`
    the number of tokens between the latest searches in vain, `num_vain` that of searches since the last match.
    """

    __slots__ = ("continuation", "match", "num_vain", "sparse")

    def __init__(self, rates: MatchRates, cache: BlockAllocator | None):
        self.match = NgramMatch(MatchRates(rates))
        self.sparse = self.num_vain = 0
        self.continuation = None if cache is None else Continuation(cache.page_size, self.match.rates)


class NgramDrafter(PageObserver):
    """Proposes at most `num_speculative_tokens` tokens, as in prompt lookup decoding (Saxena, 2023).

    With a `cache`, the tokens that another request had after the same prefix take precedence over a match that is less
    likely right. If the shortest matches are mostly wrong and there is none, the next search is some tokens later.
    """

    def __init__(self, num_speculative_tokens: int, cache: BlockAllocator | None = None):
        self._max_drafts = num_speculative_tokens
        self._cache = cache
        self._rates = MatchRates()
        self._searches: dict[int, _Search] = {}
        """By uid."""
        if cache is not None:
            cache.add_observer(self)

    def on_finished(self, uid: int) -> None:
        self._searches.pop(uid, None)

    def propose(self, req: Req, max_tokens: int) -> Draft:
        token_ids, search = req.token_ids, self._searches.get(req.uid)
        text_ids = without_spans(token_ids, req.pending.spans)
        if search is None:
            search = self._searches[req.uid] = _Search(self._rates, self._cache)
        match, continuation = search.match, search.continuation
        match.follow(text_ids)
        num_drafts = min(max_tokens, self._max_drafts)
        if self._cache is not None and continuation is not None and len(token_ids) >= continuation.idle_until:
            others = continuation.find(token_ids, partial(self._cache.find_continuation, req))[:num_drafts]
            chance = match.rates.chance(CONTINUATION)
            if others and not (match.place and match.rates.chance(KINDS[match.length]) >= chance):
                return Draft(others, [chance] * len(others))
        if match.place:
            search.num_vain = 0
            if match.length > MIN_LENGTH:
                search.sparse = 0
            elif search.sparse and match.rates.chance(KINDS[MIN_LENGTH]) < SPARSE_CHANCE:
                return Draft(NO_DRAFT.token_ids, (), len(token_ids) + MIN_SPARSE)
            return Draft(match.next_ids(text_ids, num_drafts), match.chances(num_drafts))
        search.num_vain += 1
        if search.num_vain > MAX_SPARSE or match.rates.chance(KINDS[MIN_LENGTH]) < SPARSE_CHANCE:
            search.sparse = min(max(MIN_SPARSE, 2 * search.sparse), MAX_SPARSE)
            return Draft(NO_DRAFT.token_ids, (), len(token_ids) + search.sparse)
        return NO_DRAFT
