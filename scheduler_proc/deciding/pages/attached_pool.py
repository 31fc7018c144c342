"""Units of a pool, such as window pages, that are attached to pages: cached with them, and evicted on their own.

A unit is used by running requests. Without a user it is freed with its page, or evicted when others are needed, the
least recently used first: those that requests have `passed` before those that are `kept`, where requests are likely to
continue.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.pages import PagePool
from scheduler_proc.deciding.pages.running_request import Req

NOTHING: Mapping[int, int] = {}


class AttachedPool(PageObserver):
    """Attaches `num_units` units to pages. `attached`: those that are attached from the start, by page."""

    what = "unit"
    ended_by: Literal["no_checkpoint", "window_evicted"]
    """Why a hit is shorter than the cached pages."""

    def __init__(self, num_units: int, attached: Mapping[int, int] = NOTHING):
        self.num_evicted = 0
        self._pool = PagePool(num_units, set(attached.values()))
        self._attached = dict(attached)
        """The unit of each page that has one."""
        self._num_users: dict[int, int] = {}
        """Running requests that use a unit, by page."""
        self._passed: dict[int, None] = {}
        """The pages of other units, the least recently used first: those that requests have passed."""
        self._kept: dict[int, None] = dict.fromkeys(attached)
        """Likewise, where requests are likely to continue, or have continued."""

    @property
    def num_available(self) -> int:
        """Units that are free or can be evicted."""
        return self._pool.num_free + len(self._passed) + len(self._kept)

    def find_end(self, pages: Sequence[int], least: int) -> int:
        """Returns after how many of the cached `pages` a request can continue: the most, or `least`."""
        return len(pages)

    def explain_end(self, num_usable: int, num_cached: int) -> int:
        """Returns where a hit of `num_usable` of `num_cached` pages ends in answers about the cache."""
        return num_usable

    def enter(self, req: Req, num_before: int) -> None:
        """Lets `req` use what it needs to continue after its pages, which were found from `num_before` on."""

    def reenter(self, req: Req) -> None:
        """Lets `req` begin again, without anything but its pages."""

    def reserve(self, req: Req, num_pages: int) -> bool:
        """Makes room for `num_pages` more pages of `req`; returns False if there is too little."""
        return True

    def extend(self, pages: Collection[int]) -> None:
        """Attaches what is needed to each of `pages`, for which room was reserved."""

    def merge(self, req: Req, start: int, cached: Sequence[int]) -> None:
        """Lets `cached` replace the pages of `req` from `start` on."""

    def advance(self, req: Req) -> None:
        """Ends the use of what no token of `req` needs any more, after pages of it were cached."""

    def leave(self, req: Req) -> None:
        """Ends the use of the shared pages of `req`; its others are freed next."""

    def on_freed(self, pages: Collection[int]) -> None:
        for page in pages:
            if page in self._attached:
                self._detach(page)

    def _detach(self, page: int) -> None:
        self._pool.free((self._attached.pop(page),))
        self._num_users.pop(page, None)
        self._passed.pop(page, None)
        self._kept.pop(page, None)

    def _evict(self) -> None:
        self._detach(next(iter(self._passed or self._kept)))
        self.num_evicted += 1

    def _use(self, pages: Iterable[int]) -> None:
        users, passed, kept = self._num_users, self._passed, self._kept
        for page in pages:
            users[page] = users.get(page, 0) + 1
            passed.pop(page, None)
            kept.pop(page, None)

    def _unuse(self, pages: Iterable[int], queue: dict[int, None]) -> None:
        """Ends one use of the unit of each of `pages`; without another use it enters `queue`."""
        for page in pages:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                del self._num_users[page]
                queue[page] = None

    def _move(self, page: int, other: int) -> None:
        """Moves the unit of `page` to `other`, which has none."""
        self._attached[other] = self._attached.pop(page)
        if page in self._num_users:
            self._num_users[other] = self._num_users.pop(page)
            return
        queue = self._passed if page in self._passed else self._kept
        del queue[page]
        queue[other] = None

    def _check(self, users: Counter[int], others: Collection[int]) -> None:
        """Asserts that each unit is free, attached to one page, or one of `others`, which have another owner."""
        assert dict(users) == self._num_users, f"the users of a {self.what} were miscounted"
        unused = set(self._attached).difference(users)
        assert unused == {*self._passed, *self._kept}, f"a {self.what} without a user cannot be evicted"
        assert len(unused) == len(self._passed) + len(self._kept), f"a {self.what} would be evicted twice"
        assert users.keys() <= self._attached.keys(), f"a request uses a page without a {self.what}"
        used = [*others, *self._attached.values(), *self._pool.free_pages()]
        assert len(set(used)) == len(used), f"a {self.what} has two owners"
