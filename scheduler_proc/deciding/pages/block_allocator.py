"""The KV cache as the scheduler sees it: every page is free, cached in the radix tree, or held by one running request.

The tokens of a running request, from its first (page-aligned where marked |):

    0 ........ num_shared_pages |      pages of the tree, pinned at req.node: others may read them, nobody writes
    ........... len(req.pages)  |      pages held by this request alone
    0 ........ num_computed_tokens     K and V are in the cache
    ........... + this step's chunk    written by the running step
    ........... len(req.token_ids)     known: the prompt and what has been sampled

A page moves: free → held (`grow`) → cached (`share` after a prefill chunk, `close` at the end) → free (evicted). With a
journal it is sealed when it is cached or, of a row in DECODE, when it is full, and unsealed when it is free.
With tiers below the cache (`page_tiers.py`) it is kept there when it is evicted, and held pages are filled from there.
"""

import time
from array import array
from collections.abc import Iterable

import msgspec

from messages.columns import INT32
from messages.ring.cache import CacheAnswer, CacheExplained, CacheQuestion, ExplainCache, ListCache
from scheduler_proc.deciding.pages.cache_questions import explain, list_nodes
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding.pages.page_tiers import PageTiers
from scheduler_proc.deciding.pages.pages import PagePool
from scheduler_proc.deciding.pages.radix import Node, RadixTree, salt_of
from scheduler_proc.deciding.requests import PendingReq, Req

SAVED_AT_ONCE = 8
"""Pages."""

MAX_EVICTED_AT_ONCE = 64
"""Pages, with tiers: a put takes about as long for one page as for ten. Of a small cache it is a 32nd."""


class BlockAllocator:
    """Gives requests their pages and finds beginnings that are cached; with `is_sharing` false nothing ever is.

    What the `journal` knows of a predecessor's pages is cached from the start.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        is_sharing: bool = True,
        journal: PageJournal | None = None,
        tiers: PageTiers | None = None,
    ):
        self.page_size = page_size
        self.is_sharing = is_sharing
        self.num_held = 0
        self.num_evicted = 0
        """Pages that were cached and made room for others, since the start."""
        self.draft_pages: set[int] = set()
        """Those in use of which the draft model, if there is one, has K and V, too: it adds them."""
        self.journal = journal
        self._tree = RadixTree(page_size, None if journal is None else journal.stamps)
        recovered = set[int]() if journal is None else journal.recover(self._tree)
        self._pool = PagePool(num_pages, recovered)
        self.tiers = tiers
        self._num_evicted_at_once = 0 if tiers is None else min(MAX_EVICTED_AT_ONCE, num_pages // 32)
        if tiers is not None and journal is not None:
            for page in recovered:
                tiers.set_digest(page, journal.digest(page))

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        return self._tree.num_pages

    @property
    def num_nodes(self) -> int:
        return self._tree.num_nodes

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking any from a running request."""
        return self._pool.num_free + self._tree.num_evictable

    def num_missing(self, req: Req, num_tokens: int) -> int:
        """Returns how many more pages `req` needs to have room for `num_tokens` in all."""
        return max(0, -(-num_tokens // self.page_size) - len(req.pages))

    def open(self, pending: PendingReq) -> Req:
        """Returns the request with the pages of its longest cached beginning, pinned until `close`."""
        req = Req(pending, self._tree.root)
        self._tree.pin(req.node)
        return req

    def find_prefix(self, req: Req) -> None:
        """Moves a request in PREFILL on to the longest cached beginning of its tokens, in place of pages of its own.

        At least one token is left to compute, for without one there is no next token, and so are all those after which
        the logprobs of a prompt token are still to come.
        """
        if self.tiers is not None and self.tiers.is_loading(req):
            return
        page = self.next_page(req)
        if not page or not self._tree.has_child(req.node, req.pending.salt, page):
            return
        start, size = req.num_shared_pages, self.page_size
        end = req.pending.num_reusable_tokens // size
        if end <= start:
            return
        key = req.token_ids[start * size : end * size].tobytes()
        node, found = self._tree.find(req.node, req.pending.salt, key)
        self._give_back(req.pages[start:])
        req.pages[start:] = found
        self._extend_shared(req, node, start + len(found))
        req.num_computed_tokens = req.num_shared_pages * size

    def next_page(self, req: Req) -> bytes:
        """Returns the token bytes of the page after the shared ones; empty where it could not be shared."""
        start, size = req.num_shared_pages * self.page_size, self.page_size
        if not self.is_sharing or start + size >= len(req.token_ids):
            return b""
        return req.token_ids[start : start + size].tobytes()

    def find_continuation(self, req: Req, num_tokens: int) -> "array[int]":
        """Returns at most so many ids (int32) that other requests had behind the tokens of `req`; none is good."""
        found: array[int] = array(INT32)
        if req.node.children:
            tail = req.token_ids[req.num_shared_pages * self.page_size :].tobytes()
            found.frombytes(self._tree.find_continuation(req.node, req.pending.salt, tail, 4 * num_tokens))
        return found

    def grow(self, req: Req, num_tokens: int) -> bool:
        """Gives `req` room for `num_tokens` in all, evicting where needed; returns False where there is too little."""
        self.seal(req)
        missing = self.num_missing(req, num_tokens)
        if missing > self._pool.num_free:
            if missing > self.num_available:
                return False
            evicted = self._tree.evict(max(missing - self._pool.num_free, self._num_evicted_at_once))
            self.num_evicted += len(evicted)
            if self.tiers is not None:
                self.tiers.put(evicted)
            self._free(evicted)
        req.pages += self._pool.allocate(missing)
        self.num_held += missing
        return True

    def seal(self, req: Req) -> None:
        """Has the journal know the full computed pages of `req`."""
        self._seal(req, req.num_computed_tokens // self.page_size)

    @property
    def has_loads(self) -> bool:
        """Tells whether a request waits for pages from a lower tier."""
        return self.tiers is not None and self.tiers.has_loads

    def load(self, req: Req) -> bool:
        """Tells whether pages behind the shared ones are being loaded from a lower tier; begins that if it is worth it.

        Call it behind `find_prefix`.
        """
        tiers = self.tiers
        if tiers is None:
            return False
        if not tiers.is_loading(req):
            digests = tiers.find_worth_loading(req)
            if not digests or not self.grow(req, (req.num_shared_pages + len(digests)) * self.page_size):
                return False
            tiers.load(req, digests)
        return True

    def collect_loaded(self) -> None:
        """Notes which pages have come from lower tiers since the last call."""
        if self.tiers is not None:
            for req, num_tokens, has_ended in self.tiers.pop_loaded():
                req.num_computed_tokens = max(req.num_computed_tokens, num_tokens)
                if has_ended:
                    self.share(req)

    def save(self, timeout_s: float) -> None:
        """Puts cached pages into the lower tiers, the last used first; waits for that, but no longer."""
        if self.tiers is None:
            return
        deadline_s = time.monotonic() + timeout_s
        pages = [page for node in sorted(self._tree.nodes(), key=lambda node: -node.used) for page in node.pages]
        for start in range(0, len(pages), SAVED_AT_ONCE):
            if not self.tiers.save(pages[start : start + SAVED_AT_ONCE], deadline_s - time.monotonic()):
                return

    def share(self, req: Req) -> None:
        """Puts the full computed pages of `req` into the tree; one that the tree had already replaces the own one."""
        if not self.is_sharing:
            return
        start, end = req.num_shared_pages, req.num_computed_tokens // self.page_size
        if end <= start:
            return
        key = req.token_ids[start * self.page_size : end * self.page_size].tobytes()
        own = req.pages[start:end]
        node, cached = self._tree.insert(req.node, req.pending.salt, key, own, req.uid)
        self.num_held -= len(own)
        self._free([page for page, kept in zip(own, cached, strict=True) if page != kept])
        req.pages[start:end] = cached
        self._seal(req, end)
        if self.tiers is not None:
            self.tiers.name(req, start, end)
        self._extend_shared(req, node, end)

    def close(self, req: Req, is_reusable: bool = True) -> None:
        """Ends the request's use of its pages: full ones stay cached, others are free.

        With `is_reusable` false, none that only this request used is kept: what it computed cannot be trusted.
        """
        if self.tiers is not None:
            self.tiers.cancel(req)
        if is_reusable:
            self.share(req)
        self._give_back(req.pages[req.num_shared_pages :])
        self._tree.unpin(req.node)
        if not is_reusable:
            self._free(self._tree.forget(req.node))
        req.pages, req.num_shared_pages, req.node = [], 0, self._tree.root

    def answer(self, question: CacheQuestion) -> CacheAnswer:
        """Returns what is cached of a prompt, or what the largest nodes are; nothing changes."""
        match question:
            case ExplainCache():
                return self._add_tiers(question, explain(self._tree, question, is_sharing=self.is_sharing))
            case ListCache():
                tier_pages = {} if self.tiers is None else self.tiers.store.sizes()
                tier_tokens = {name: num_pages * self.page_size for name, num_pages in tier_pages.items()}
                return msgspec.structs.replace(list_nodes(self._tree, question), tier_tokens=tier_tokens)

    def flush(self) -> int:
        """Frees every cached page that no running request uses, and returns how many; lower tiers are empty then."""
        pages = self._tree.evict(self._tree.num_evictable)
        self._free(pages)
        if self.tiers is not None:
            self.tiers.store.clear()
        return len(pages)

    def check(self, running: Iterable[Req]) -> None:
        """Asserts that every page is free, cached or held, once, and that the pins are those of `running`."""
        reqs = list(running)
        free = self._pool.free_pages()
        self._tree.check()
        cached = [page for node in self._tree.nodes() for page in node.pages]
        held = [page for req in reqs for page in req.pages[req.num_shared_pages :]]
        assert len(held) == self.num_held, "held pages were miscounted"
        assert len(free) + len(cached) + len(held) == self.num_pages, "free + cached + held is not all pages"
        assert len(free.union(cached, held)) == self.num_pages, "a page has two owners"
        assert self.draft_pages.isdisjoint(free), "a free page has K and V of the draft model"
        if self.journal is not None:
            sealed = set(self.journal.sealed_pages())
            assert sealed.issuperset(cached), "a cached page is not sealed"
            assert sealed.isdisjoint(free), "a free page is sealed"
        pins = dict.fromkeys((id(node) for node in self._tree.nodes()), 0)
        for req in reqs:
            _count_path(req, pins)
        for node in self._tree.nodes():
            assert node.pins == pins[id(node)], "a node's pins are not those of the running requests"
        assert self._tree.root.pins == len(reqs), "the root's pins are not those of the running requests"

    def _seal(self, req: Req, num_pages: int) -> None:
        """Has the journal know what the first pages of `req` hold, which are computed."""
        journal, size, start = self.journal, self.page_size, num_pages
        if journal is None:
            return
        while start and not journal.is_sealed(req.pages[start - 1]):
            start -= 1
        for index in range(start, num_pages):
            before = req.pages[index - 1] if index else None
            tokens = req.token_ids[index * size : (index + 1) * size].tobytes()
            journal.seal(req.pages[index], before, tokens, req.pending.salt, req.uid, self._tree.clock)

    def _add_tiers(self, question: ExplainCache, answer: CacheExplained) -> CacheExplained:
        if self.tiers is None:
            return answer
        key = question.input_ids[: (len(question.input_ids) - 4) // (4 * self.page_size) * 4 * self.page_size]
        num_pages = answer.num_hit_tokens // self.page_size
        counts = self.tiers.count_tokens(salt_of(question.cache_salt), key, num_pages)
        return msgspec.structs.replace(answer, tier_tokens=counts)

    def _free(self, pages: list[int]) -> None:
        if self.journal is not None:
            self.journal.unseal(pages)
        self.draft_pages.difference_update(pages)
        self._pool.free(pages)

    def _give_back(self, pages: list[int]) -> None:
        self._free(pages)
        self.num_held -= len(pages)

    def _extend_shared(self, req: Req, node: Node, num_pages: int) -> None:
        self._tree.pin(node)
        self._tree.unpin(req.node)
        req.node, req.num_shared_pages = node, num_pages


def _count_path(req: Req, pins: dict[int, int]) -> None:
    """Adds the request's pin to each node of its path, and asserts that the path holds its shared pages."""
    path: list[int] = []
    node = req.node
    while node.parent is not None:
        pins[id(node)] += 1
        path[:0] = node.pages
        node = node.parent
    assert path == req.pages[: req.num_shared_pages], "a request's shared pages are not those of its node"
