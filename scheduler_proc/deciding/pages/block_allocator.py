"""Allocates KV-cache pages: each is free, cached in the radix tree, or held by one running request.

The tokens of a running request, from its first (page-aligned where marked |):

    0 ........ num_shared_pages |      pages of the tree, pinned at req.node: shared, never written
    ........... len(req.pages)  |      pages held by this request alone
    0 ........ num_computed_tokens     K and V are in the cache
    ........... + this step's chunk    written by the running step
    ........... len(req.token_ids)     known: the prompt and what has been sampled

A page moves: free → held (`grow`) → cached (`share` after a prefill chunk, `close` at the end) → free (evicted).
`PageObserver`s are notified of each of these moves. An `AttachedPool` attaches units to pages.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

from messages.columns import INT32
from messages.ring.cache import CacheAnswer, CacheQuestion, ExplainCache, ListCache
from scheduler_proc.deciding.pages.attached_pool import AttachedPool
from scheduler_proc.deciding.pages.cache_questions import explain, find_end, list_nodes
from scheduler_proc.deciding.pages.page_keys import leading_ids, two_way_at
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.pages import PagePool
from scheduler_proc.deciding.pages.radix import Node, RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import PendingReq

T = TypeVar("T", bound=PageObserver)

PageKey = tuple[int, bytes, bytes]


class BlockAllocator:
    """Allocates pages to requests and finds cached prefixes; with `is_sharing` false nothing is ever cached.

    The pages that `tree` already holds are cached from the start. If pages run out, at least `num_evicted_at_once` are
    evicted together.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        is_sharing: bool = True,
        tree: RadixTree | None = None,
        observers: Iterable[PageObserver] = (),
        num_evicted_at_once: int = 0,
    ):
        self.page_size = page_size
        self.is_sharing = is_sharing
        self.num_held = 0
        self.num_evicted = 0
        """Cached pages evicted since the start."""
        self.observers: Sequence[PageObserver] = ()
        self._attached: list[AttachedPool] = []
        self._follow_filled: list[PageObserver] = []
        for observer in observers:
            self.add_observer(observer)
        self._tree = RadixTree(page_size) if tree is None else tree
        self._pool = PagePool(num_pages, {page for node in self._tree.nodes() for page in node.pages})
        self._num_evicted_at_once = num_evicted_at_once

    def add_observer(self, observer: PageObserver) -> None:
        self.observers = (*self.observers, observer)
        if isinstance(observer, AttachedPool):
            self._attached.append(observer)
        if type(observer).on_filled is not PageObserver.on_filled:  # it would be called often
            self._follow_filled.append(observer)

    def find_observer(self, kind: type[T]) -> T | None:
        """Returns the observer of this class, if there is one."""
        return next((observer for observer in self.observers if isinstance(observer, kind)), None)

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
        """Pages that can be allocated without preempting a running request."""
        return self._pool.num_free + self._tree.num_evictable

    def num_missing(self, req: Req, num_tokens: int) -> int:
        """Returns how many more pages `req` needs for `num_tokens` in all."""
        return max(0, -(-num_tokens // self.page_size) - len(req.pages))

    def open(self, pending: PendingReq) -> Req:
        """Returns the request without pages yet; those that `find_prefix` finds are pinned until `close`."""
        req = Req(pending, self._tree.root)
        self._tree.pin(req.node)
        for observer in self.observers:
            observer.on_opened(req)
        return req

    def admit(self, req: Req) -> None:
        """Gives an opened request what it needs while it has a row, which must be available."""
        for observer in self.observers:
            observer.on_admitted(req)

    def finish(self, uid: int) -> None:
        """Forgets a request for good. It must have been closed, if it was ever opened."""
        for observer in self.observers:
            observer.on_finished(uid)

    def find_prefix(self, req: Req) -> None:
        """Moves a request in PREFILL on to its longest cached prefix, which replaces pages of its own.

        At least one token is left to compute, since otherwise there would be no next token; so is every token from
        which a prompt task still needs a result. Pages that an observer is filling are not replaced.
        """
        page = self._next_page(req)
        if not page or not self._tree.has_child(req.node, req.pending.salt, page):
            return
        if any(observer.is_filling(req) for observer in self.observers):
            return
        start, size = req.num_shared_pages, self.page_size
        end = req.pending.num_reusable_tokens // size
        if end <= start:
            return
        key = req.page_key(start * size, end * size, size)
        if self._attached or any(span.is_two_way for span in req.pending.spans):
            key = key[: self._count_reusable(req, key) * 4 * size]
            if not key:
                return
        node, found = self._tree.find(req.node, req.pending.salt, key)
        self._give_back(req.pages[start:])
        req.pages[start:] = found
        self._extend_shared(req, node, start + len(found))
        req.num_computed_tokens = req.num_shared_pages * size
        for part in self._attached:
            part.enter(req, start)

    def _count_reusable(self, req: Req, key: bytes) -> int:
        """Returns how many cached pages of `key` the request can use: after them it finds what it needs.

        They end in no span with attention in both directions: one step computes it.
        """
        path, start = self._tree.match(req.node, req.pending.salt, key), req.num_shared_pages
        pages = req.pages[:start] + [page for node, num_same in path for page in node.pages[:num_same]]
        req.num_matched_pages = len(pages)
        end = find_end(self._attached, pages, start)
        while end > start and (span := two_way_at(req.pending.spans, end * self.page_size)):
            end = find_end(self._attached, pages[: max(start, span.start // self.page_size)], start)
        return end - start

    def count_unusable(self, req: Req) -> int:
        """Returns how many of the next pages of `req` are cached, though it cannot continue after them."""
        start, end = req.num_shared_pages, req.pending.num_reusable_tokens // self.page_size
        key = req.page_key(start * self.page_size, end * self.page_size, self.page_size)
        return sum(num_same for _, num_same in self._tree.match(req.node, req.pending.salt, key))

    def reopen(self, req: Req, num_pages: int = 0) -> None:
        """Lets a request in PREFILL begin again with its first `num_pages`, which are cached, and nothing else."""
        self._give_back(req.pages[req.num_shared_pages :])
        key = req.page_key(0, num_pages * self.page_size, self.page_size)
        node, req.pages = self._tree.find(self._tree.root, req.pending.salt, key)
        self._extend_shared(req, node, len(req.pages))
        req.num_computed_tokens = 0
        for part in self._attached:
            part.reenter(req)

    def next_page_key(self, req: Req) -> PageKey:
        """Returns what is the same for requests that would compute the same next page, which they could share."""
        page = self._next_page(req)
        return (id(req.node), req.pending.salt, page) if page else (id(req), b"", b"")

    def _next_page(self, req: Req) -> bytes:
        """Returns the key of the page after the shared ones; empty if it cannot be shared."""
        start, size = req.num_shared_pages * self.page_size, self.page_size
        if not self.is_sharing or start + size >= len(req.token_ids):
            return b""
        return req.page_key(start, start + size, size)

    def find_continuation(self, req: Req, num_tokens: int) -> "array[int]":
        """Returns at most `num_tokens` ids (int32) that followed those of `req` in other requests; may be empty."""
        found: array[int] = array(INT32)
        if req.node.children:
            tail = req.page_key(req.num_shared_pages * self.page_size, len(req.token_ids), self.page_size)
            found.frombytes(self._tree.find_continuation(req.node, req.pending.salt, tail, 4 * num_tokens))
        return leading_ids(found)

    def grow(self, req: Req, num_tokens: int) -> bool:
        """Gives `req` room for `num_tokens` in all, evicting if needed; returns False if there is too little room."""
        self.record_filled(req)
        missing = self.num_missing(req, num_tokens)
        for part in self._attached:
            if not part.reserve(req, missing):
                return False
        if missing > self._pool.num_free:
            if missing > self.num_available:
                return False
            evicted = self._tree.evict(max(missing - self._pool.num_free, self._num_evicted_at_once))
            self.num_evicted += len(evicted)
            for observer in self.observers:
                observer.on_evicted(evicted)
            self._free(evicted)
        allocated = self._pool.allocate(missing)
        for part in self._attached:
            part.extend(allocated)
        req.pages += allocated
        self.num_held += missing
        return True

    def record_filled(self, req: Req) -> None:
        """Notifies the observers of the full computed pages of `req`."""
        for observer in self._follow_filled:
            observer.on_filled(req, req.num_computed_tokens // self.page_size, self._tree.clock)

    def cached_pages(self) -> list[int]:
        """Returns the cached pages, the last used first."""
        return [page for node in sorted(self._tree.nodes(), key=lambda node: -node.used) for page in node.pages]

    def share(self, req: Req) -> None:
        """Puts the full computed pages of `req` into the tree. Pages that the tree already has replace its own."""
        if not self.is_sharing:
            return
        start, end = req.num_shared_pages, req.num_computed_tokens // self.page_size
        if end <= start:
            return
        key = req.page_key(start * self.page_size, end * self.page_size, self.page_size)
        own = req.pages[start:end]
        node, cached = self._tree.insert(req.node, req.pending.salt, key, own, req.uid)
        self.num_held -= len(own)
        for part in self._attached:
            part.merge(req, start, cached)
        self._free([page for page, kept in zip(own, cached, strict=True) if page != kept])
        req.pages[start:end] = cached
        self.record_filled(req)
        for observer in self.observers:
            observer.on_cached(req, start, end)
        self._extend_shared(req, node, end)
        for part in self._attached:
            part.advance(req)

    def close(self, req: Req, is_reusable: bool = True) -> None:
        """Ends the request's use of its pages: full ones stay cached, others are freed.

        With `is_reusable` false, pages that only this request used are freed, too: their K and V cannot be trusted.
        """
        for observer in self.observers:
            observer.on_closed(req)
        if is_reusable:
            self.share(req)
        for part in self._attached:
            part.leave(req)
        self._give_back(req.pages[req.num_shared_pages :])
        self._tree.unpin(req.node)
        if not is_reusable:
            self._free(self._tree.forget(req.node))
        req.pages, req.num_shared_pages, req.node = [], 0, self._tree.root

    def answer(self, question: CacheQuestion) -> CacheAnswer:
        """Returns what is cached of a prompt, or the largest nodes; changes nothing."""
        answer: CacheAnswer
        match question:
            case ExplainCache():
                answer = explain(self._tree, question, self._attached, is_sharing=self.is_sharing)
            case ListCache():
                answer = list_nodes(self._tree, question)
        for observer in self.observers:
            answer = observer.complete(question, answer)
        return answer

    def flush(self) -> int:
        """Frees every cached page that no running request uses, and returns their number."""
        pages = self._tree.evict(self._tree.num_evictable)
        self._free(pages)
        for observer in self.observers:
            observer.on_flushed()
        return len(pages)

    def check(self, running: Iterable[Req]) -> None:
        """Asserts that every page has one owner, and that the pins are those of `running`."""
        reqs = list(running)
        free = self._pool.free_pages()
        self._tree.check()
        cached = [page for node in self._tree.nodes() for page in node.pages]
        held = [page for req in reqs for page in req.pages[req.num_shared_pages :]]
        assert len(held) == self.num_held, "held pages were miscounted"
        assert len(free) + len(cached) + len(held) == self.num_pages, "free + cached + held is not all pages"
        assert len(free.union(cached, held)) == self.num_pages, "a page has two owners"
        for observer in self.observers:
            observer.check(reqs, free, cached)
        pins = dict.fromkeys((id(node) for node in self._tree.nodes()), 0)
        for req in reqs:
            _count_path(req, pins)
        for node in self._tree.nodes():
            assert node.pins == pins[id(node)], "a node's pins are not those of the running requests"
        assert self._tree.root.pins == len(reqs), "the root's pins are not those of the running requests"

    def _free(self, pages: list[int]) -> None:
        for observer in self.observers:
            observer.on_freed(pages)
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
