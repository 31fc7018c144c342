"""The slots of recurrent states: one of each running request, and checkpoints, which are cached with pages.

A *state slot* holds the state of all recurrent layers after some token. A *checkpoint* is a slot attached to a page:
it holds the state after the page's last token and is never written again. A cached prefix can be continued only after
a page with a checkpoint. The slots of a running request:

    own      a step may store there
    spare    another own one, for the next step of a row that was in a failed step; else -1
    source   the state after its computed tokens: its own slot, or the checkpoint of `page`; else -1

Checkpoints that no running request continues from are evicted when slots are needed, the least recently used first:
those that a long prompt or the next turn of a conversation has passed before all others, until one of them is used.
Nothing is copied between slots.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from scheduler_proc.deciding.pages.attached_pool import NOTHING, AttachedPool
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.radix import Node
from scheduler_proc.deciding.pages.resource import Resource
from scheduler_proc.deciding.pages.running_request import Records, Req

NO_STATE = -1
"""No state slot."""

DRAFTS_SHARE = 4
"""One in this many slots may be taken from checkpoints for draft tokens."""


class RowState:
    """The slots of one running request. The latest checkpoint of its output is at `rolling_page`."""

    __slots__ = ("own", "page", "rolling_page", "source", "spare")

    def __init__(self) -> None:
        self.own = self.spare = self.source = NO_STATE
        self.page: int | None = None
        self.rolling_page: int | None = None


class StateSlots(AttachedPool, Resource):
    """Gives out `num_slots` (at least 2) slots. A long prompt gets a checkpoint every `interval` pages.

    `attached`: the slots of the checkpoints that are there from the start, by page, the least recently used first.
    """

    name = "state_slots"
    what = "state slot"
    ended_by = "no_checkpoint"

    def __init__(self, num_slots: int, interval: int, attached: Mapping[int, int] = NOTHING):
        assert num_slots >= 2, "a row that was in a failed step needs two slots"
        super().__init__(num_slots, attached)
        self.num_slots = num_slots
        self.interval = interval
        self.rows = Records[RowState]()
        """By uid."""
        self.suspects: set[int] = set()
        """The uids of prompts that are computed again because a step with their state failed."""
        self.on_evicted_alone: Callable[[Collection[int]], None] = lambda pages: None
        """Called with pages whose checkpoints are evicted next, without the pages."""

    @property
    def num_for_drafts(self) -> int:
        """The maximum number of draft tokens in a step, each of which needs a slot: they evict few checkpoints."""
        return min(self.num_available, max(self._pool.num_free + len(self._passed), self.num_slots // DRAFTS_SHARE))

    def find_end(self, pages: Sequence[int], least: int) -> int:
        return next((end for end in range(len(pages), least, -1) if pages[end - 1] in self._attached), least)

    def explain_end(self, num_usable: int, num_cached: int) -> int:
        return num_cached

    def find_slot(self, page: int) -> int | None:
        """Returns the slot of the checkpoint of `page`."""
        return self._attached.get(page)

    def find_likely(self, pages: Iterable[int]) -> dict[int, int]:
        """Returns the slots of the checkpoints of `pages` from which requests are likely to continue, by page."""
        return {page: self._attached[page] for page in pages if page in self._kept}

    def allocate(self) -> int:
        """Returns a slot, which must be available; evicts a checkpoint if needed."""
        if not self._pool.num_free:
            self.on_evicted_alone((next(iter(self._passed or self._kept)),))
            self._evict()
        return self._pool.allocate(1)[0]

    def allocate_for_checkpoint(self, former: int | None = None, *, is_likely: bool = True) -> int | None:
        """Returns a slot if one is available. The checkpoint of page `former` is evicted rather than others.

        One that is not `is_likely` evicts none that is.
        """
        if not self._pool.num_free and former in self._kept:
            self._detach(former)
        num_available = self.num_available if is_likely else self._pool.num_free + len(self._passed)
        return self.allocate() if num_available else None

    def free(self, slots: Sequence[int]) -> None:
        self._pool.free(slots)

    def on_opened(self, req: Req) -> None:
        self.rows[req.uid] = RowState()

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        return 1 - self.num_available

    def on_admitted(self, req: Req) -> None:
        self.rows[req.uid].own = self.allocate()

    def reserve(self, req: Req, num_pages: int) -> bool:
        """Gives a row that was in a failed step a spare slot if it needs one."""
        row = self.rows[req.uid]
        if req.uid in self.suspects and row.source == row.own and row.spare == NO_STATE:
            if not self.num_available:
                return False
            row.spare = self.allocate()
        return True

    def release(self, req: Req) -> None:
        """Frees the spare slot of `req` if it does not need it any more."""
        row = self.rows[req.uid]
        if row.spare != NO_STATE and req.uid not in self.suspects:
            self._pool.free((row.spare,))
            row.spare = NO_STATE

    def keep(self, req: Req, num_tokens: int, slot: int, cache: BlockAllocator, *, is_likely: bool) -> bool:
        """Makes `slot` a checkpoint: the state after the first `num_tokens` tokens, which are computed.

        Returns False if their last page has one. `is_likely`: requests are likely to continue there, so that it is
        evicted after those at intervals.
        """
        cache.record_filled(req)
        page = req.pages[num_tokens // cache.page_size - 1]
        if page in self._attached:
            return False
        self._attached[page] = slot
        (self._kept if is_likely else self._passed)[page] = None
        for observer in cache.observers:
            observer.on_state_kept(page, slot)
        return True

    def drop(self, page: int | None) -> None:
        """Frees the checkpoint of `page`, unless a request continues from it."""
        if page in self._kept:
            self._detach(page)

    def enter(self, req: Req, num_before: int) -> None:
        """Lets `req` continue from the checkpoint of its last page; those that it has passed are evicted before."""
        self.use(req, req.pages[-1])
        for page in _pages_before_end(req.node):
            if page in self._kept:
                del self._kept[page]
                self._passed[page] = None

    def reenter(self, req: Req) -> None:
        self.stop_using(req)
        self.rows[req.uid].source = NO_STATE

    def use(self, req: Req, page: int) -> None:
        """Lets `req` continue from the checkpoint of `page`."""
        row = self.rows[req.uid]
        if row.page is not None:
            self._unuse((row.page,), self._kept)
        self._use((page,))
        row.page, row.source = page, self._attached[page]

    def stop_using(self, req: Req) -> None:
        """Lets `req` continue from its own slot."""
        row = self.rows[req.uid]
        page, row.page, row.source = row.page, None, row.own
        if page is not None:
            self._unuse((page,), self._kept)

    def merge(self, req: Req, start: int, cached: Sequence[int]) -> None:
        """Moves checkpoints to pages of `cached` that have none."""
        for own, page in zip(req.pages[start:], cached, strict=False):
            if own in self._attached and own not in self._num_users and page not in self._attached:
                self._move(own, page)

    def on_closed(self, req: Req) -> None:
        """Frees the slots of `req`. Its checkpoints stay."""
        self.stop_using(req)
        row = self.rows.pop(req.uid)
        self._pool.free([slot for slot in (row.own, row.spare) if slot != NO_STATE])

    def on_finished(self, uid: int) -> None:
        self.suspects.discard(uid)

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {
            "state_slots_all": self.num_slots,
            "state_slots_in_use": self.num_slots - self.num_available,
            "state_checkpoints": len(self._attached),
            "state_checkpoints_evicted": self.num_evicted,
        }

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that no slot is used twice, and that each checkpoint without a user can be evicted.

        Slots that steps in flight store to are not known here.
        """
        assert self.rows.keys() == {req.uid for req in reqs}, "a request that is closed has a state"
        rows = self.rows.values()
        own = [slot for row in rows for slot in (row.own, row.spare) if slot != NO_STATE]
        self._check(Counter(row.page for row in rows if row.page is not None), own)
        assert self._attached.keys() <= {*cached, *(page for req in reqs for page in req.pages)}, "a page was freed"
        for req in reqs:
            row = self.rows[req.uid]
            source = row.own if row.page is None else self._attached[row.page]
            assert row.source in (source, NO_STATE), "a request continues from another slot"
            assert row.source != NO_STATE or not req.num_computed_tokens, "a request has lost its state"


def _pages_before_end(node: Node) -> list[int]:
    """Returns the pages from the root to `node`, but not its last one and none behind which cached texts part."""
    pages, step = node.pages[:-1], node.parent
    while step is not None:
        pages += step.pages if len(step.children) == 1 else step.pages[:-1]
        step = step.parent
    return pages
