"""Moves evicted pages to the tiers below the KV cache, and loads them for requests that need them again.

A page is named by the digest of its tokens and of the previous page (`page_journal.py`), so every request with the same
prefix finds it. A `PageStore` owns the tiers and copies pages out of the cache and into it, asynchronously.

A request in PREFILL may have a load: pages of its own that the store fills, in order. Until the load ends the request
has no chunk, and other requests continue. After an incomplete load the remaining pages are computed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from messages.ring.cache import CacheAnswer, CacheExplained, CacheListed, CacheQuestion, ExplainCache
from scheduler_proc.deciding.pages.page_journal import NOTHING_BEFORE, digest_of
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Req
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
    def __init__(self, req: Req, start: int):
        self.req = req
        self.start = start
        self.deadline_s = time.monotonic() + LOAD_TIMEOUT_S


class PageTiers(PageObserver):
    """Names the cached pages, puts them into `store` when they are evicted, and tracks the loads of requests."""

    def __init__(self, store: PageStore, num_pages: int, page_size: int):
        self.num_evicted_at_once = min(MAX_EVICTED_AT_ONCE, num_pages // 32)
        self._store = store
        self._page_size = page_size
        self._digests = [b""] * num_pages
        """By page: valid for those in the radix tree, stale otherwise."""
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
        is_worth_it = self._page_compute_s * self._num_asked_for >= self._store.page_put_s * self._num_evicted
        if is_worth_it or self._num_skipped_at_once >= NUM_SKIPPED_AT_ONCE:
            self._num_skipped_at_once = 0
            self._store.put(pages, digests)
            return
        self._num_skipped += len(pages)
        self._num_skipped_at_once += len(pages)
        self._forgotten.update(dict.fromkeys(digests))
        while len(self._forgotten) > MAX_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def on_closed(self, req: Req) -> None:
        """Cancels the load of `req`, if it has one."""
        if self._loads.pop(req.uid, None) is not None:
            req.is_loading = False
            self._store.cancel(req.uid)

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
            if not self._store.settle(deadline_s - time.monotonic()):
                return

    @property
    def has_loads(self) -> bool:
        """True if a request waits for pages from the store."""
        return bool(self._loads)

    def load(self, req: Req, grow: Callable[[Req, int], bool]) -> bool:
        """Loads the pages after the shared ones if that is faster than computing them; True while they are loading.

        Call it after `find_prefix`. `grow` gives `req` room for a number of tokens, or returns False.
        """
        if not req.is_loading:
            start, digests = req.num_shared_pages, self._find_worth_loading(req)
            if not digests or not grow(req, (start + len(digests)) * self._page_size):
                return False
            req.is_loading = True
            self._loads[req.uid] = _Load(req, start)
            self._num_asked_for += len(digests)
            self._store.load(req.uid, req.pages[start : start + len(digests)], digests)
        return True

    def _find_worth_loading(self, req: Req) -> list[bytes]:
        """Returns the names of the next pages that the store loads faster than a step computes them."""
        digests: list[bytes] = []
        is_whole = True
        for digest in self._digests_of(req, req.num_shared_pages, req.pending.num_reusable_tokens // self._page_size):
            is_whole = is_whole and self._store.find(digest) is not None
            if is_whole:
                digests.append(digest)
            elif digest in self._forgotten:
                del self._forgotten[digest]
                self._num_asked_for += 1
            else:
                break
        if not digests or time.monotonic() < self._rest_until_s:
            return []
        self._store.touch(digests)
        compute_s = len(digests) * self._page_compute_s
        is_worth_it = not compute_s or self._store.estimate_s(digests) < compute_s * self._patience
        self._patience = 1.0 if is_worth_it else self._patience * IMPATIENCE
        return digests if is_worth_it else []

    def collect_loaded(self, share: Callable[[Req], None]) -> None:
        """Counts tokens loaded since the last call as computed; calls `share` for each load that has ended."""
        if not self._loads:
            return
        now_s = time.monotonic()
        for uid, num_pages, has_ended in self._store.pop_loaded():
            load = self._loads[uid]
            load.deadline_s = now_s + LOAD_TIMEOUT_S
            req = load.req
            req.num_computed_tokens = max(req.num_computed_tokens, (load.start + num_pages) * self._page_size)
            if has_ended:
                req.is_loading = False
                del self._loads[uid]
                share(req)
        for load in [load for load in self._loads.values() if load.deadline_s < now_s]:
            self.on_closed(load.req)
            self._rest_until_s = now_s + REST_S

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
            case ExplainCache(), CacheExplained(num_hit_tokens=num_hit_tokens):
                counts = self._count_tokens(question, num_hit_tokens // self._page_size)
                return msgspec.structs.replace(answer, tier_tokens=counts)
            case _, CacheListed():
                counts = {name: num_pages * self._page_size for name, num_pages in self._store.sizes().items()}
                return msgspec.structs.replace(answer, tier_tokens=counts)
            case _:
                return answer

    def _count_tokens(self, question: ExplainCache, start: int) -> dict[str, int]:
        """Returns how many tokens of a prompt each tier has from page `start` on, up to the first that none has."""
        counts: dict[str, int] = {}
        page_bytes = 4 * self._page_size
        key = question.input_ids[: (len(question.input_ids) - 4) // page_bytes * page_bytes]
        for index, digest in enumerate(_chain(NOTHING_BEFORE, salt_of(question.cache_salt), key, page_bytes)):
            if index >= start:
                name = self._store.find(digest)
                if name is None:
                    break
                counts[name] = counts.get(name, 0) + self._page_size
        return counts

    def _digests_of(self, req: Req, start: int, end: int) -> Iterator[bytes]:
        """Yields the names of pages `start` to `end` of a request, whose earlier pages are in the tree."""
        before = self._digests[req.pages[start - 1]] if start else NOTHING_BEFORE
        key = req.token_ids[start * self._page_size : end * self._page_size]
        return _chain(before, req.pending.salt, key.tobytes(), 4 * self._page_size)


def _chain(before: bytes, salt: bytes, key: bytes, page_bytes: int) -> Iterator[bytes]:
    for position in range(0, len(key), page_bytes):
        before = digest_of(before, salt, key[position : position + page_bytes])
        yield before
