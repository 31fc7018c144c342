"""Moves evicted pages to the tiers below the KV cache, and loads them for requests that need them again.

A page is named by the digest of its tokens and of the previous page (`page_journal.py`), so every request with the same
prefix finds it. A `PageStore` owns the tiers and copies pages out of the cache and into it, asynchronously.

A request in PREFILL may have a load: pages of its own that the store fills, in order. Until the load ends the request
has no chunk, and other requests continue. After an incomplete load the remaining pages are computed.

A checkpoint of recurrent states (`state_slots.py`) is put when its page or its slot is evicted, under the name of the
page. Then a load ends at a page whose checkpoint the store has; it may begin behind cached pages that have none. After
an incomplete load the request begins again from what is cached.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from messages.ring.cache import CacheAnswer, CacheExplained, CacheListed, CacheQuestion, ExplainCache
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_journal import NOTHING_BEFORE, digest_of
from scheduler_proc.deciding.pages.page_observer import PageStore
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.pages.state_slots import StateSlots
from scheduler_proc.deciding.requests import PendingReq, salt_of
from scheduler_proc.deciding.sampling.endings import Ending

LOAD_TIMEOUT_S = 5.0
"""A load is cancelled if no page arrives for this long."""

REST_S = 60.0
"""No load starts for this long afterwards, since a disk may hang."""

SAVE_S = 2.0
"""The time to save cached pages at the end of a process; the launcher waits somewhat longer."""

SAVED_AT_ONCE = 8
"""Pages."""

MAX_EVICTED_AT_ONCE = 64
"""Pages: a put takes about as long for one page as for ten. A small cache evicts a 32nd of its pages."""

DECAY = 0.9
"""The factor by which the weight of past measurements falls with each new one."""

NUM_MEASURED_PAGES = 4096
"""The number of latest evicted pages over which repeated requests are counted."""

NUM_HOPED_FOR = 512
"""The number of hits assumed initially: conversations return only after many others."""

NUM_SKIPPED_AT_ONCE = 1024
"""After this many evicted pages that were not put, some are put, to measure the cost again."""

MAX_FORGOTTEN = 65536
"""The number of evicted pages that were not put, but whose names are kept to count requests for them."""

IMPATIENCE = 1.05
"""The factor by which each load that was not worth its time raises the limit, so that eventually one is measured."""


class _Load:
    """Fills the pages of `req` from `start` on and, with a `slot`, the checkpoint of the `last` one."""

    def __init__(self, req: Req, start: int, last: bytes, slot: int | None):
        self.req = req
        self.start = start
        self.slot = slot
        self.last = last
        self.num_running = (start < len(req.pages)) + (slot is not None)
        """The stores that have not ended it."""
        self.num_loaded = Counter[PageStore]()
        self.deadline_s = time.monotonic() + LOAD_TIMEOUT_S

    @property
    def is_whole(self) -> bool:
        return self.num_loaded.total() == len(self.req.pages) - self.start + (self.slot is not None)


class _Checkpoints(NamedTuple):
    """The slots of recurrent states, and the store of evicted ones, whose pages are slots."""

    slots: StateSlots
    store: PageStore


class PageTiers(Resource):
    """Names the cached pages, puts them into `store` when they are evicted, and tracks the loads of requests.

    `slots`: those of recurrent states, if there are any; the store then has one for `states`.
    """

    def __init__(self, store: PageStore, num_pages: int, page_size: int, slots: StateSlots | None = None):
        self.num_evicted_at_once = min(MAX_EVICTED_AT_ONCE, num_pages // 32)
        self._store = store
        self._checkpoints: _Checkpoints | None = None
        if slots is not None and store.states is not None:
            self._checkpoints = _Checkpoints(slots, store.states)
            slots.on_evicted_alone = self._put_checkpoints
        self._page_size = page_size
        self._digests = [b""] * num_pages
        """By page: empty for those that are not in the radix tree."""
        self._loads: dict[int, _Load] = {}
        self._num_prefilled_tokens = 0.0
        self._prefill_s = 0.0
        self._patience = 1.0
        self._rest_until_s = 0.0
        self._num_evicted = self._num_asked_for = float(NUM_HOPED_FOR)
        self._forgotten: dict[bytes, None] = {}
        self._num_skipped_at_once = 0
        self._num_skipped = 0
        """Evicted pages that were not put."""

    def set_digest(self, page: int, digest: bytes) -> None:
        """Names a page that was cached before there was an allocator."""
        self._digests[page] = digest

    def on_cached(self, req: Req, start: int, end: int) -> None:
        for page, digest in zip(req.pages[start:end], self._digests_of(req, start, end), strict=True):
            self._digests[page] = digest

    def on_evicted(self, pages: Sequence[int]) -> None:
        """Puts the pages into the store if it is likely enough that they will be requested again."""
        digests = [self._digests[page] for page in pages]
        share = (1 - 1 / NUM_MEASURED_PAGES) ** len(pages)
        self._num_asked_for *= share
        self._num_evicted = self._num_evicted * share + len(pages)
        self._put_checkpoints(pages)
        if self._is_worth_it(len(pages), self._store.page_put_s):
            self._store.put(pages, digests)
            return
        self._num_skipped += len(pages)
        self._forgotten.update(dict.fromkeys(digests))
        while len(self._forgotten) > MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def on_freed(self, pages: Collection[int]) -> None:
        for page in pages:
            self._digests[page] = b""

    def _put_checkpoints(self, pages: Collection[int], *, is_end: bool = False) -> None:
        """Puts the checkpoints of cached pages that requests may continue from: at the end, or if that is worth it."""
        if self._checkpoints is None:
            return
        slots, store = self._checkpoints
        likely = {self._digests[page]: slot for page, slot in slots.find_likely(pages).items() if self._digests[page]}
        num_pages, page_put_s = slots.interval * len(likely), store.page_put_s / slots.interval
        if likely and (is_end or self._is_worth_it(num_pages, page_put_s)):
            store.put(list(likely.values()), list(likely))

    def _is_worth_it(self, num_pages: int, page_put_s: float) -> bool:
        """True if it is likely enough that pages will be requested again, or if the cost is to be measured again."""
        is_worth_it = self._page_compute_s * self._num_asked_for >= page_put_s * self._num_evicted
        if is_worth_it or self._num_skipped_at_once >= NUM_SKIPPED_AT_ONCE:
            self._num_skipped_at_once = 0
            return True
        self._num_skipped_at_once += num_pages
        return False

    def on_closed(self, req: Req) -> None:
        """Cancels the load of `req`, if it has one."""
        load = self._loads.pop(req.uid, None)
        if load is not None:
            self._store.cancel(req.uid)
            if self._checkpoints is not None:
                self._checkpoints.store.cancel(req.uid)
                self._checkpoints.slots.free([] if load.slot is None else [load.slot])

    def on_flushed(self) -> None:
        self._store.clear()

    def gauges(self) -> dict[str, float]:
        return {"tier_skipped_pages": self._num_skipped, **self._store.gauges()}

    def save(self, pages: Sequence[int], timeout_s: float) -> None:
        """Puts cached pages into the store, the first ones first, and waits for at most `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        for start in range(0, len(pages), SAVED_AT_ONCE):
            part = pages[start : start + SAVED_AT_ONCE]
            self._store.put(part, [self._digests[page] for page in part])
            self._put_checkpoints(part, is_end=True)
            if not self._store.settle(deadline_s - time.monotonic()):
                return

    @property
    def is_loading(self) -> bool:
        """True if a request waits for pages from the store."""
        return bool(self._loads)

    def is_filling(self, req: Req) -> bool:
        return req.uid in self._loads

    def find_delay(self, req: Req, chunks: Iterable[Chunk], cache: BlockAllocator) -> int | None:
        """Returns `req` itself while its pages are loading, which begins here if it is worth it."""
        return req.uid if self._load(req, cache) else None

    def _load(self, req: Req, cache: BlockAllocator) -> bool:
        """Loads the pages after the shared ones if that is faster than computing them; True while they are loading.

        A request whose last page another one is loading waits for that.
        """
        if self.is_filling(req):
            return True
        num_cached = 0 if self._checkpoints is None else cache.count_unusable(req)
        digests = self._find_worth_loading(req, num_cached)
        if not digests or len(digests) > cache.num_available:
            return False
        if digests[-1] in [load.last for load in self._loads.values()]:
            return True
        num_cached = min(num_cached, len(digests))
        start, end = req.num_shared_pages + num_cached, req.num_shared_pages + len(digests)
        slot = None
        if self._checkpoints is not None:
            slot = self._checkpoints.slots.allocate_for_checkpoint()
            if slot is None:
                return False
            cache.reopen(req, start)
        if not cache.grow(req, end * self._page_size):
            assert slot is None, "there was room for the pages"
            return False
        self._loads[req.uid] = _Load(req, start, digests[-1], slot)
        self._num_asked_for += len(digests)
        if start < end:
            self._store.load(req.uid, req.pages[start:end], digests[num_cached:])
        if slot is not None and self._checkpoints is not None:
            self._checkpoints.store.load(req.uid, (slot,), digests[-1:])
        return True

    def _find_worth_loading(self, req: Req, num_cached: int) -> list[bytes]:
        """Returns the names of the next pages that the store loads faster than a step computes them.

        `num_cached` of them need not be loaded. The store has a checkpoint of the last one, if there are any.
        """
        checkpoints = self._checkpoints
        if checkpoints is not None and req.num_computed_tokens and checkpoints.slots.rows[req.uid].page is None:
            return []  # it would lose what it has computed
        start, end = req.num_shared_pages, req.pending.num_reusable_tokens // self._page_size
        digests: list[bytes] = []
        num_usable, is_whole = 0, True
        for place, digest in enumerate(self._digests_of(req, start, end)):
            is_whole = is_whole and (place < num_cached or self._store.find(digest) is not None)
            if is_whole:
                digests.append(digest)
                if checkpoints is None or checkpoints.store.find(digest) is not None:
                    num_usable = len(digests)
            elif digest in self._forgotten:
                del self._forgotten[digest]
                self._num_asked_for += 1
            else:
                break
        del digests[num_usable:]
        if not digests or time.monotonic() < self._rest_until_s:
            return []
        compute_s = len(digests) * self._page_compute_s
        is_worth_it = not compute_s or self._estimate_s(digests, num_cached) < compute_s * self._patience
        self._patience = 1.0 if is_worth_it else self._patience * IMPATIENCE
        return digests if is_worth_it else []

    def _estimate_s(self, digests: list[bytes], num_cached: int) -> float:
        """Returns the expected duration of a load of these pages; marks them as used."""
        self._store.touch(digests)
        seconds = self._store.estimate_s(digests[num_cached:])
        if self._checkpoints is not None:
            self._checkpoints.store.touch(digests[-1:])
            seconds += self._checkpoints.store.estimate_s(digests[-1:])
        return seconds

    def collect(self, waiting: Iterable[PendingReq], cache: BlockAllocator) -> Sequence[tuple[PendingReq, Ending]]:
        """Counts tokens loaded since the last call as computed, and caches those of loads that have ended."""
        if not self._loads:
            return ()
        now_s = time.monotonic()
        for store in (self._store, *(self._checkpoints or ())[1:]):
            for uid, num_loaded, has_ended in store.pop_loaded():
                load = self._loads[uid]
                load.deadline_s = now_s + LOAD_TIMEOUT_S
                load.num_loaded[store] = num_loaded
                load.num_running -= has_ended
        for load in list(self._loads.values()):
            is_late = load.deadline_s < now_s
            if load.slot is None or not load.num_running:
                num_tokens = (load.start + load.num_loaded[self._store]) * self._page_size
                load.req.num_computed_tokens = max(load.req.num_computed_tokens, num_tokens)
            if is_late:
                self._rest_until_s = now_s + REST_S
            if is_late or not load.num_running:
                self._end(load, cache)
        return ()

    def _end(self, load: _Load, cache: BlockAllocator) -> None:
        """Caches the pages of a load, and lets its request continue from the checkpoint or, without it, begin again."""
        req, is_whole, slots = load.req, load.is_whole, self._checkpoints and self._checkpoints.slots
        cache.share(req)
        if slots is not None and load.slot is not None and is_whole:
            is_kept = slots.keep(req, req.num_computed_tokens, load.slot, cache, is_likely=True)
            load.slot = None if is_kept else load.slot
        self.on_closed(req)
        if slots is not None and is_whole:
            slots.use(req, req.pages[-1])
        elif slots is not None:
            cache.reopen(req)

    @property
    def _page_compute_s(self) -> float:
        """The time that a step needs for the tokens of a page, 0 before the first."""
        return self._page_size * self._prefill_s / self._num_prefilled_tokens if self._prefill_s else 0.0

    def record_prefill(self, num_tokens: int, seconds: float) -> None:
        """Records the time of a step with prompts."""
        self._num_prefilled_tokens = DECAY * self._num_prefilled_tokens + num_tokens
        self._prefill_s = DECAY * self._prefill_s + seconds

    def complete(self, question: CacheQuestion, answer: CacheAnswer) -> CacheAnswer:
        """Returns the answer about the cache with the number of tokens that each tier has."""
        match question, answer:
            case ExplainCache(), CacheExplained():
                counts = self._count_tokens(question, answer)
                return msgspec.structs.replace(answer, tier_tokens=counts)
            case _, CacheListed():
                counts = {name: num_pages * self._page_size for name, num_pages in self._store.sizes().items()}
                return msgspec.structs.replace(answer, tier_tokens=counts)
            case _:
                return answer

    def _count_tokens(self, question: ExplainCache, answer: CacheExplained) -> dict[str, int]:
        """Returns how many more tokens of a prompt would hit with each tier.

        Cached pages that only lack a checkpoint count for the tier that has it.
        """
        page_bytes = 4 * self._page_size
        start, names, num_usable, last = answer.num_hit_tokens // self._page_size, list[str | None](), 0, ""
        num_cached = answer.position // self._page_size if answer.ended_by == "no_checkpoint" else start
        key = question.input_ids[: (len(question.input_ids) - 4) // page_bytes * page_bytes]
        for index, digest in enumerate(_chain(NOTHING_BEFORE, salt_of(question.cache_salt), key, page_bytes)):
            if index < start:
                continue
            name = self._store.find(digest)
            if name is None and index >= num_cached:
                break
            names.append(name)
            place = name if self._checkpoints is None else self._checkpoints.store.find(digest)
            if place is not None:
                num_usable, last = len(names), place
        counts = Counter(name or last for name in names[:num_usable])
        return {name: count * self._page_size for name, count in counts.items()}

    def _digests_of(self, req: Req, start: int, end: int) -> Iterator[bytes]:
        """Yields the names of pages `start` to `end` of a request, whose earlier pages are in the tree."""
        before = self._digests[req.pages[start - 1]] if start else NOTHING_BEFORE
        size = self._page_size
        key = req.page_key(start * size, end * size, size)
        return _chain(before, req.pending.salt, key, 4 * size)


def _chain(before: bytes, salt: bytes, key: bytes, page_bytes: int) -> Iterator[bytes]:
    for position in range(0, len(key), page_bytes):
        before = digest_of(before, salt, key[position : position + page_bytes])
        yield before
