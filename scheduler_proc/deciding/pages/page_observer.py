"""The protocols of what keeps account of KV-cache pages besides the allocator, and of what keeps evicted ones."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from messages.ring.cache import CacheAnswer, CacheQuestion
from scheduler_proc.deciding.pages.running_request import Req


class PageObserver(Protocol):
    """Is notified by `BlockAllocator` of what happens to requests and pages. A subclass overrides what it needs."""

    outlives_process = False
    """It lets a successor of the process take over cached pages."""

    def on_opened(self, req: Req) -> None:
        """`req` may get a row: it is admitted or closed next."""

    def on_admitted(self, req: Req) -> None:
        """`req` has a row until `on_closed`."""

    def on_filled(self, req: Req, num_pages: int, clock: int) -> None:
        """All K and V of the first `num_pages` of `req` are computed; `clock` is the radix tree's."""

    def on_cached(self, req: Req, start: int, end: int) -> None:
        """Pages `start` to `end` (exclusive) of `req` are in the radix tree now."""

    def on_state_kept(self, page: int, slot: int) -> None:
        """State `slot` is the checkpoint of the full `page` now."""

    def on_evicted(self, pages: Sequence[int]) -> None:
        """Cached `pages` make room for others. They are intact until `on_freed`, which follows."""

    def on_freed(self, pages: Collection[int]) -> None:
        """`pages` may be reused: any later step may write to them."""

    def on_closed(self, req: Req) -> None:
        """`req` no longer uses its pages. They are cached or freed next."""

    def on_finished(self, uid: int) -> None:
        """The request has ended; it may never have been opened."""

    def on_flushed(self) -> None:
        """The cache has been emptied on request."""

    def is_filling(self, req: Req) -> bool:
        """True while it writes to pages of `req`, which therefore cannot be replaced by cached ones."""
        return False

    def complete(self, question: CacheQuestion, answer: CacheAnswer) -> CacheAnswer:
        """Returns the answer about the cache with what it knows in addition."""
        return answer

    def save(self, pages: Sequence[int], timeout_s: float) -> None:
        """The process ends: it may take `timeout_s` to save these cached pages, the last used first."""

    def damage(self, num_pages: int) -> None:
        """Overwrites K and V of up to `num_pages` pages that a successor would take over (fault injection)."""

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {}

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that its account matches the running requests, the free and the cached pages."""


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
