"""The protocol of everything besides the allocator that keeps account of KV-cache pages."""

from collections.abc import Collection, Sequence
from typing import Protocol

from scheduler_proc.deciding.pages.running_request import Req


class PageObserver(Protocol):
    """Is notified by `BlockAllocator` of what happens to pages. A subclass overrides what it needs."""

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

    def on_flushed(self) -> None:
        """The cache has been emptied on request."""

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {}

    def check(self, free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that its account matches the free and the cached pages."""
