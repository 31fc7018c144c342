"""The pages of windowed layers: freed behind the window of each request, and cached and evicted on their own.

A *window page* is attached to a page, for the same tokens: it holds their K and V of windowed layers, the page those of
all other layers. The pages of a running request:

    0 ........ its start          before the window of every token that can still be computed: not used by the request
    .......... len(req.pages)     each has a window page, which the request uses

A window page without a user is freed, or stays attached to its cached page until it is evicted. First those are evicted
that prompts have passed, then those of places where requests are likely to continue: before the end of a request, the
end of a prompt, and the end of the cached text that a prompt began with.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from messages.columns import INT32, INT64, pack_int32
from scheduler_proc.deciding.pages.attached_pool import NOTHING, AttachedPool
from scheduler_proc.deciding.pages.resource import Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk, Records, Req

NO_PAGE_BYTES = pack_int32([-1])

SPARE_PAGES = 2
"""The number of window pages kept before the window of a likely place: the next prompt may differ just before it."""


class _Row:
    """What one request uses: the window pages from `start` on.

    `table` is its table in its latest step in DECODE, with its token in page `index`, padded to `width`. Adding `base`
    to a position in that page gives its slot.
    """

    __slots__ = ("base", "index", "start", "table", "width")

    def __init__(self) -> None:
        self.start = self.base = self.index = self.width = 0
        self.table = b""


class WindowPages(AttachedPool, Resource):
    """Attaches `num_pages` window pages to pages of `page_size` tokens; the layers see the last `window` tokens."""

    name = "window_pages"
    what = "window page"
    ended_by = "window_evicted"

    def __init__(self, window: int, num_pages: int, page_size: int, attached: Mapping[int, int] = NOTHING):
        super().__init__(num_pages, attached)
        self.num_pages = num_pages
        self.num_steady = 1 + -(-(window - 1) // page_size)
        """The maximum number of window pages that a request uses between two steps."""
        self._window = window
        self._page_size = page_size
        self._rows = Records[_Row]()

    def on_opened(self, req: Req) -> None:
        self._rows[req.uid] = _Row()

    def start_of(self, req: Req) -> int:
        """Returns from which page on `req` uses window pages."""
        return self._rows[req.uid].start

    def used_by(self, req: Req, num_pages: int) -> Iterator[tuple[int, int]]:
        """Yields those of the first `num_pages` of `req` whose window pages it uses, each with its window page."""
        return ((page, self._attached[page]) for page in req.pages[self.start_of(req) : num_pages])

    def find_end(self, pages: Sequence[int], least: int) -> int:
        """The page boundary must have the window pages of all tokens that the next token sees."""
        end = position = len(pages)
        while end > least:
            start = self._start_of(end * self._page_size)
            while position > start and pages[position - 1] in self._attached:
                position -= 1
            if position <= start:
                return end
            end = position = position - 1
        return least

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        """Each running row keeps a page for growth."""
        num_needed = largest_chunk = 0
        for each in (*prefilling, req):
            num_pages = len(each.token_ids) // self._page_size + 1
            num_needed += max(0, min(num_pages, self.num_steady) - (len(each.pages) - self.start_of(each)))
            largest_chunk = max(largest_chunk, min(num_pages - self.num_steady, -(-max_num_tokens // self._page_size)))
        return num_needed + largest_chunk - self.num_available + num_active

    def reserve(self, req: Req, num_pages: int) -> bool:
        self.advance(req)
        return num_pages <= self.num_available

    def extend(self, pages: Collection[int]) -> None:
        while self._pool.num_free < len(pages):
            self._evict()
        self._attached.update(zip(pages, self._pool.allocate(len(pages)), strict=True))
        self._num_users.update(dict.fromkeys(pages, 1))

    def enter(self, req: Req, num_before: int) -> None:
        row, start = self._rows[req.uid], self._start_of(len(req.pages) * self._page_size)
        self._unuse(req.pages[row.start : min(start, num_before)], self._kept)
        self._use(req.pages[max(start, num_before) :])
        row.start, row.width = start, 0

    def advance(self, req: Req) -> None:
        """Ends the use of the window pages that no token of `req` can see any more."""
        row = self._rows[req.uid]
        start, end, num_shared = row.start, self._start_of(req.num_computed_tokens), req.num_shared_pages
        if end <= start:
            return
        places = [
            range(self._start_of(place * self._page_size) - SPARE_PAGES, place)
            for place in (req.num_matched_pages, len(req.token_ids) // self._page_size)
        ]
        for index in range(start, min(end, num_shared)):
            is_likely = any(index in place for place in places)
            self._unuse(req.pages[index : index + 1], self._kept if is_likely else self._passed)
        self.on_freed(req.pages[max(start, num_shared) : end])
        row.start, row.width = end, 0

    def merge(self, req: Req, start: int, cached: Sequence[int]) -> None:
        """A page of `cached` that lacks a window page gets the one of `req`."""
        for index, page in enumerate(cached, start):
            own = req.pages[index]
            if page == own or index < self.start_of(req):
                continue
            if page in self._attached:
                self._use((page,))
            else:
                self._move(own, page)

    def leave(self, req: Req) -> None:
        self.advance(req)
        self._unuse(req.pages[self._rows.pop(req.uid).start : req.num_shared_pages], self._kept)

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns the slots and page tables of windowed layers."""
        size, slots = self._page_size, array(INT64)
        width = max([len(chunk.req.pages) for chunk in chunks], default=1)
        if rows.reqs:
            width = max(width, rows.table_width)
        in_decode = self._rows.of(rows.reqs)
        for req, row, context_len in zip(rows.reqs, in_decode, rows.context_lens, strict=True):
            index = context_len // size
            if row.index != index or row.width != width:  # once a page: nothing else moves a row's window pages
                pages = self._find(req.pages[row.start : index + 1])
                row.index, row.width, row.table = index, width, _table(row.start, pages, width)
                row.base = (pages[-1] - index) * size
            slots.append(row.base + context_len)
        tables = [row.table for row in in_decode]
        for req, start, end, _, draft_ids, _ in chunks:
            before, end = self.start_of(req), end + len(draft_ids)
            pages = self._find(req.pages[before:])
            tables.append(_table(before, pages[: -(-end // size) - before], width))
            for index in range(start // size, -(-end // size)):
                first = (pages[index - before] - index) * size  # from positions to slots, within this page
                slots.extend(range(first + max(start, index * size), first + min(end, (index + 1) * size)))
        return {"window_slots": slots.tobytes(), "window_page_tables": b"".join(tables)}

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {
            "window_pages_all": self.num_pages,
            "window_pages_free": self._pool.num_free,
            "window_pages_in_use": self.num_pages - self.num_available,
            "window_pages_evicted": self.num_evicted,
        }

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that each window page is free, or attached to one page that is cached or used by running requests."""
        assert self._rows.keys() == {req.uid for req in reqs}, "a request that is closed uses window pages"
        users = Counter(page for req in reqs for page in req.pages[self.start_of(req) :])
        self._check(users, ())
        assert (self._attached.keys() - users).issubset(cached), "an unused window page belongs to no cached page"
        assert len(self._attached) + self._pool.num_free == self.num_pages, "a window page was lost"

    def _start_of(self, num_tokens: int) -> int:
        """Returns the first page that is seen after `num_tokens` tokens, or after those of their full pages."""
        return max(0, num_tokens // self._page_size * self._page_size - self._window + 1) // self._page_size

    def _find(self, pages: Sequence[int]) -> "array[int]":
        """Returns the window pages of these pages, which must have one."""
        return array(INT32, map(self._attached.__getitem__, pages))


def _table(start: int, pages: "array[int]", width: int) -> bytes:
    """Returns the table of a row whose window pages begin at `start`, padded."""
    return NO_PAGE_BYTES * start + pages.tobytes() + NO_PAGE_BYTES * (width - start - len(pages))
