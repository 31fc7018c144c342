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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from messages.ring.cache import CacheAnswer, CacheExplained, CacheListed, CacheQuestion, ExplainCache
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_journal import NOTHING_BEFORE, digest_of
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.state_slots import StateSlots
from scheduler_proc.deciding.requests import salt_of

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


class PageStore(Protocol):
    """Keeps K and V of evicted pages. Only `settle` blocks. A thread of it calls `wake` when pages have been loaded."""

    wake: Callable[[], None]

    @property
    def states(self) -> "PageStore | None":
        """The store of checkpoints, whose pages are state slots; closed, cleared and waited for with this one."""
        ...

    @property
    def page_put_s(self) -> float:
        """The measured delay of steps for each page that is put; 0 before the first."""
        ...

    def find(self, digest: bytes) -> str | None:
        """Returns the name of the tier that has a page, `None` if none has it."""
        ...

    def touch(self, digests: Sequence[bytes]) -> None:
        """Marks the pages of a prefix as used last, so that they are evicted last."""

    def put(self, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        """Copies the pages into the store, or drops them if there is no time. Any later step may overwrite them."""

    def estimate_s(self, digests: Sequence[bytes]) -> float:
        """Returns the expected duration of a load of these pages by the measured rates; 0 before the first."""
        ...

    def load(self, uid: int, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        """Starts to fill the pages with the contents that `put` stored under these names."""

    def cancel(self, uid: int) -> None:
        """Stops writing to the pages of a request's load, if it has one."""

    def pop_loaded(self) -> list[tuple[int, int, bool]]:
        """Returns the loads that have made progress or have ended, possibly incomplete.

        Each entry is the uid, the number of its first pages that hold K and V for every step launched from now on, and
        whether the load has ended.
        """
        ...

    def sizes(self) -> dict[str, int]:
        """Returns the number of pages in each tier."""
        ...

    def settle(self, timeout_s: float) -> bool:
        """Waits until all pages that were put are stored or dropped. Returns False on a timeout."""
        ...

    def clear(self) -> None:
        """Forgets every page."""

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        ...

    def close(self) -> None:
        """Ends the threads and drops pending writes."""


class _Load:
    """Of the pages of `req` from `start` on and, with a `slot`, of the checkpoint of the `last` one."""

    def __init__(self, req: Req, start: int, last: bytes, slot: int | None):
        self.req = req
        self.start = start
        self.slot = slot
        self.last = last
        self.num_running = (start < len(req.pages)) + (slot is not None)
        """The stores that have not ended it."""
        self.num_loaded = 0
        self.has_state = False
        self.deadline_s = time.monotonic() + LOAD_TIMEOUT_S


class PageTiers(PageObserver):
    """Names the cached pages, puts them into `store` when they are evicted, and tracks the loads of requests.

    `slots`: those of recurrent states, if there are any; the store then has one for `states`.
    """

    def __init__(self, store: PageStore, num_pages: int, page_size: int, slots: StateSlots | None = None):
        self.num_evicted_at_once = min(MAX_EVICTED_AT_ONCE, num_pages // 32)
        self._store = store
        self._states = store.states
        self._slots = slots
        if slots is not None:
            slots.on_evicted = self._put_states
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
        if self._slots is not None:
            self._put_states(self._slots.find_likely(pages))
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

    def _put_states(self, slots: Mapping[int, int]) -> None:
        """Puts the checkpoints in `slots`, by page, if that is worth it. Those of pages without a name are lost."""
        named = {self._digests[page]: slot for page, slot in slots.items() if self._digests[page]}
        if named and self._states is not None and self._slots is not None:
            interval = self._slots.interval
            if self._is_worth_it(interval * len(named), self._states.page_put_s / interval):
                self._states.put(list(named.values()), list(named))

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
            req.is_loading = False
            self._store.cancel(req.uid)
            if load.slot is not None and self._states is not None and self._slots is not None:
                self._states.cancel(req.uid)
                self._slots.free((load.slot,))

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
            if self._slots is not None:
                self._put_states(self._slots.find_likely(part))
            if not self._store.settle(deadline_s - time.monotonic()):
                return

    @property
    def has_loads(self) -> bool:
        """True if a request waits for pages from the store."""
        return bool(self._loads)

    def load(self, req: Req, cache: BlockAllocator) -> bool:
        """Loads the pages after the shared ones if that is faster than computing them; True while they are loading.

        Call it after `find_prefix`. A request whose last page another one is loading waits for that.
        """
        if req.is_loading:
            return True
        num_cached = 0 if self._slots is None else cache.count_unusable(req)
        digests = self._find_worth_loading(req, num_cached)
        if not digests or len(digests) > cache.num_available:
            return False
        if digests[-1] in [load.last for load in self._loads.values()]:
            return True
        num_cached = min(num_cached, len(digests))
        start, end = req.num_shared_pages + num_cached, req.num_shared_pages + len(digests)
        slot = None
        if self._slots is not None:
            slot = self._slots.allocate_for_checkpoint()
            if slot is None:
                return False
            cache.reopen(req, start)
        if not cache.grow(req, end * self._page_size):
            assert slot is None, "there was room for the pages"
            return False
        req.is_loading = True
        self._loads[req.uid] = _Load(req, start, digests[-1], slot)
        self._num_asked_for += len(digests)
        if start < end:
            self._store.load(req.uid, req.pages[start:end], digests[num_cached:])
        if slot is not None and self._states is not None:
            self._states.load(req.uid, (slot,), digests[-1:])
        return True

    def _find_worth_loading(self, req: Req, num_cached: int) -> list[bytes]:
        """Returns the names of the next pages that the store loads faster than a step computes them.

        `num_cached` of them need not be loaded. The store has a checkpoint of the last one, if there are any.
        """
        if self._states is not None and req.num_computed_tokens and req.state_page is None:
            return []  # it would lose what it has computed
        start, end = req.num_shared_pages, req.pending.num_reusable_tokens // self._page_size
        digests: list[bytes] = []
        num_usable, is_whole = 0, True
        for place, digest in enumerate(self._digests_of(req, start, end)):
            is_whole = is_whole and (place < num_cached or self._store.find(digest) is not None)
            if is_whole:
                digests.append(digest)
                if self._states is None or self._states.find(digest) is not None:
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
        if self._states is not None:
            self._states.touch(digests[-1:])
            seconds += self._states.estimate_s(digests[-1:])
        return seconds

    def collect_loaded(self, cache: BlockAllocator) -> None:
        """Counts tokens loaded since the last call as computed, and caches those of loads that have ended."""
        if not self._loads:
            return
        now_s = time.monotonic()
        changed: dict[_Load, None] = {}
        for store in filter(None, (self._store, self._states)):
            for uid, num_loaded, has_ended in store.pop_loaded():
                load = self._loads[uid]
                changed[load] = None
                load.num_running -= has_ended
                if store is self._store:
                    load.num_loaded = num_loaded
                else:
                    load.has_state = num_loaded > 0
        for load in changed:
            load.deadline_s = now_s + LOAD_TIMEOUT_S
            if not load.num_running:
                self._end(load, cache)
            elif load.slot is None:
                self._advance(load)
        for load in [load for load in self._loads.values() if load.deadline_s < now_s]:
            self.on_closed(load.req)
            self._rest_until_s = now_s + REST_S
            if load.slot is not None:
                cache.reopen(load.req)

    def _advance(self, load: _Load) -> None:
        num_tokens = (load.start + load.num_loaded) * self._page_size
        load.req.num_computed_tokens = max(load.req.num_computed_tokens, num_tokens)

    def _end(self, load: _Load, cache: BlockAllocator) -> None:
        """Caches the pages of a load, and lets its request continue from the checkpoint or, without it, begin again."""
        req = load.req
        is_whole = load.has_state and load.start + load.num_loaded == len(req.pages)
        req.is_loading = False
        del self._loads[req.uid]
        self._advance(load)
        cache.share(req)
        if load.slot is None or self._slots is None:
            return
        if not is_whole:
            self._slots.free((load.slot,))
            cache.reopen(req)
            return
        if not cache.keep_state(req, req.num_computed_tokens, load.slot, is_likely=True):
            self._slots.free((load.slot,))
        self._slots.use(req, req.pages[-1])

    @property
    def _page_compute_s(self) -> float:
        """The time that a step needs for the tokens of a page, 0 before the first."""
        return self._page_size * self._prefill_s / self._num_prefilled_tokens if self._prefill_s else 0.0

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """Records the time of a step with prompts."""
        self._num_prefilled_tokens = DECAY * self._num_prefilled_tokens + num_tokens
        self._prefill_s = DECAY * self._prefill_s + seconds

    def add_tokens(self, question: CacheQuestion, answer: CacheAnswer) -> CacheAnswer:
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
            place = name if self._states is None else self._states.find(digest)
            if place is not None:
                num_usable, last = len(names), place
        counts = Counter(name or last for name in names[:num_usable])
        return {name: count * self._page_size for name, count in counts.items()}

    def _digests_of(self, req: Req, start: int, end: int) -> Iterator[bytes]:
        """Yields the names of pages `start` to `end` of a request, whose earlier pages are in the tree."""
        before = self._digests[req.pages[start - 1]] if start else NOTHING_BEFORE
        key = req.token_ids[start * self._page_size : end * self._page_size]
        return _chain(before, req.pending.salt, key.tobytes(), 4 * self._page_size)


def _chain(before: bytes, salt: bytes, key: bytes, page_bytes: int) -> Iterator[bytes]:
    for position in range(0, len(key), page_bytes):
        before = digest_of(before, salt, key[position : position + page_bytes])
        yield before
