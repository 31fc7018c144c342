"""The pages of windowed layers: freed behind the window of each request, and cached and evicted on their own.

A *window page* is attached to a page, for the same tokens: it holds their K and V of windowed layers, the page those of
all other layers. The pages of a running request:

    0 ........ req.window_start   before the window of every token that can still be computed: not used by the request
    .......... len(req.pages)     each has a window page, which the request uses

A window page without a user is freed, or stays attached to its cached page until it is evicted. First those are evicted
that prompts have passed, then those of places where requests are likely to continue: before the end of a request, the
end of a prompt, and the end of the cached text that a prompt began with.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from messages.columns import INT32
from scheduler_proc.deciding.pages.pages import PagePool
from scheduler_proc.deciding.pages.running_request import Req

NOTHING: Mapping[int, int] = {}

SPARE_PAGES = 2
"""The number of window pages kept before the window of a likely place: the next prompt may differ just before it."""


class WindowPages:
    """Attaches `num_pages` window pages to pages of `page_size` tokens; the layers see the last `window` tokens."""

    def __init__(self, window: int, num_pages: int, page_size: int, attached: Mapping[int, int] = NOTHING):
        self.num_pages = num_pages
        self.num_evicted = 0
        self.num_steady = 1 + -(-(window - 1) // page_size)
        """The maximum number of window pages that a request uses between two steps."""
        self._window = window
        self._page_size = page_size
        self._pool = PagePool(num_pages, set(attached.values()))
        self._attached = dict(attached)
        """The window page of each page that has one."""
        self._num_users: Counter[int] = Counter()
        """By page."""
        self._passed: dict[int, None] = {}
        self._kept: dict[int, None] = dict.fromkeys(attached)

    @property
    def num_available(self) -> int:
        """Window pages that can be attached without preempting a running request."""
        return self._pool.num_free + len(self._passed) + len(self._kept)

    def find(self, pages: Iterable[int]) -> "array[int]":
        """Returns the window pages of these pages, which must have one."""
        return array(INT32, [self._attached[page] for page in pages])

    def find_end(self, pages: Sequence[int], least: int) -> int:
        """Returns after how many of the cached `pages` a request can continue: the most, or `least`.

        The page boundary must have the window pages of all tokens that the next token sees.
        """
        end = position = len(pages)
        while end > least:
            start = self._start_of(end * self._page_size)
            while position > start and pages[position - 1] in self._attached:
                position -= 1
            if position <= start:
                return end
            end = position = position - 1
        return least

    def num_lacking(self, reqs: Iterable[Req], max_num_tokens: int) -> int:
        """Returns how many window pages are missing to compute the prompts of `reqs`; negative if some would be left.

        A step computes at most `max_num_tokens`.
        """
        num_needed = largest_chunk = 0
        for req in reqs:
            num_pages = len(req.token_ids) // self._page_size + 1
            num_needed += max(0, min(num_pages, self.num_steady) - (len(req.pages) - req.window_start))
            largest_chunk = max(largest_chunk, min(num_pages - self.num_steady, -(-max_num_tokens // self._page_size)))
        return num_needed + largest_chunk - self.num_available

    def attach(self, pages: Collection[int]) -> None:
        """Attaches a window page to each of `pages`, which one request gets; evicts others if needed."""
        while self._pool.num_free < len(pages):
            self.detach([next(iter(self._passed or self._kept))])
            self.num_evicted += 1
        self._attached.update(zip(pages, self._pool.allocate(len(pages)), strict=True))
        self._num_users.update(pages)

    def detach(self, pages: Iterable[int]) -> None:
        """Frees the window pages of `pages`, if they have any."""
        for page in pages:
            window_page = self._attached.pop(page, None)
            if window_page is not None:
                self._pool.free((window_page,))
                del self._num_users[page]
                self._passed.pop(page, None)
                self._kept.pop(page, None)

    def enter(self, req: Req, num_before: int) -> None:
        """Uses the window pages that the next token of `req` sees, after its pages from `num_before` on were found."""
        start = self._start_of(len(req.pages) * self._page_size)
        self._leave(req.pages[req.window_start : min(start, num_before)], self._kept)
        self._use(req.pages[max(start, num_before) :])
        req.window_start = start

    def advance(self, req: Req) -> None:
        """Ends the use of the window pages that no token of `req` can see any more."""
        start, end, num_shared = req.window_start, self._start_of(req.num_computed_tokens), req.num_shared_pages
        if end <= start:
            return
        places = [
            range(self._start_of(place * self._page_size) - SPARE_PAGES, place)
            for place in (req.num_matched_pages, len(req.token_ids) // self._page_size)
        ]
        for index in range(start, min(end, num_shared)):
            is_likely = any(index in place for place in places)
            self._leave(req.pages[index : index + 1], self._kept if is_likely else self._passed)
        self.detach(req.pages[max(start, num_shared) : end])
        req.window_start = end

    def merge(self, req: Req, start: int, cached: Sequence[int]) -> None:
        """Lets `cached` replace the pages of `req` from `start` on; those that lack a window page get that of `req`."""
        for index, page in enumerate(cached, start):
            own = req.pages[index]
            if page == own or index < req.window_start:
                continue
            if page in self._attached:
                self._use((page,))
            else:
                self._attached[page] = self._attached.pop(own)
                self._num_users[page] = self._num_users.pop(own)

    def close(self, req: Req) -> None:
        """Ends the use of the window pages of the shared pages of `req`."""
        self.advance(req)
        self._leave(req.pages[req.window_start : req.num_shared_pages], self._kept)
        req.window_start = req.num_matched_pages = 0

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {
            "window_pages_all": self.num_pages,
            "window_pages_free": self._pool.num_free,
            "window_pages_in_use": self.num_pages - self.num_available,
            "window_pages_evicted": self.num_evicted,
        }

    def check(self, reqs: Iterable[Req], cached: Collection[int]) -> None:
        """Asserts that each window page is free, or attached to one page that is cached or used by running requests."""
        users = Counter(page for req in reqs for page in req.pages[req.window_start :])
        assert users == self._num_users, "the users of window pages were miscounted"
        unused = set(self._attached).difference(users)
        assert unused == {*self._passed, *self._kept}, "a window page without a user cannot be evicted"
        assert len(unused) == len(self._passed) + len(self._kept), "a window page would be evicted twice"
        assert unused.issubset(cached), "a window page without a user is attached to a page that is not cached"
        assert users.keys() <= self._attached.keys(), "a request uses a page without a window page"
        owned = set(self._attached.values())
        assert len(owned) == len(self._attached), "a window page is attached twice"
        free = self._pool.free_pages()
        assert free.isdisjoint(owned), "an attached window page is free"
        assert len(free) + len(owned) == self.num_pages, "a window page was lost"

    def _start_of(self, num_tokens: int) -> int:
        """Returns the first page that is seen after `num_tokens` tokens, or after those of their full pages."""
        return max(0, num_tokens // self._page_size * self._page_size - self._window + 1) // self._page_size

    def _use(self, pages: Collection[int]) -> None:
        self._num_users.update(pages)
        for page in pages:
            self._passed.pop(page, None)
            self._kept.pop(page, None)

    def _leave(self, pages: Iterable[int], queue: dict[int, None]) -> None:
        """Ends one use of the window page of each of `pages`; without another use it enters `queue`."""
        for page in pages:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                del self._num_users[page]
                queue[page] = None
