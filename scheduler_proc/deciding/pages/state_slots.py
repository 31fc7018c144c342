"""The slots of recurrent states: one of each running request, and checkpoints, which are cached with pages.

A *state slot* holds the state of all recurrent layers after some token. A *checkpoint* is a slot attached to a page:
it holds the state after the page's last token and is never written again. A cached prefix can be continued only after
a page with a checkpoint. The slots of a running request:

    req.state_slot      its own: a step may store there
    req.spare_slot      another own one, for the next step of a row that was in a failed step; else -1
    req.state_source    the state after its computed tokens: its own slot, or the checkpoint at req.state_page; else -1

Checkpoints that no running request continues from are evicted when slots are needed, the least recently used first:
those that a long prompt or the next turn of a conversation has passed before all others, until one of them is used.
Nothing is copied between slots.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from scheduler_proc.deciding.pages.pages import PagePool
from scheduler_proc.deciding.pages.running_request import NO_STATE, Req

NOTHING: Mapping[int, int] = {}

DRAFTS_SHARE = 4
"""One in this many slots may be taken from checkpoints for draft tokens."""


class StateSlots:
    """Gives out `num_slots` (at least 2) slots. A long prompt gets a checkpoint every `interval` pages.

    `attached`: the slots of the checkpoints that are there from the start, by page, the least recently used first.
    """

    def __init__(self, num_slots: int, interval: int, attached: Mapping[int, int] = NOTHING):
        assert num_slots >= 2, "a row that was in a failed step needs two slots"
        self.num_slots = num_slots
        self.interval = interval
        self.num_evicted = 0
        self.on_evicted: Callable[[Collection[int]], None] = lambda pages: None
        """Called with pages whose checkpoints are evicted next."""
        self._pool = PagePool(num_slots, set(attached.values()))
        self._attached = dict(attached)
        """The slot of each page that has a checkpoint."""
        self._num_users: Counter[int] = Counter()
        """Running requests that continue from a checkpoint, by page."""
        self._passed: dict[int, None] = {}
        """The pages of the other checkpoints, the least recently used first: those that requests have passed."""
        self._kept: dict[int, None] = dict.fromkeys(attached)
        """Likewise, where requests are likely to continue, or have continued."""

    @property
    def num_available(self) -> int:
        """Slots that are free or hold a checkpoint that can be evicted."""
        return self._pool.num_free + len(self._passed) + len(self._kept)

    @property
    def num_for_drafts(self) -> int:
        """The maximum number of draft tokens in a step, each of which needs a slot: they evict few checkpoints."""
        return min(self.num_available, max(self._pool.num_free + len(self._passed), self.num_slots // DRAFTS_SHARE))

    def find_end(self, pages: Sequence[int], least: int) -> int:
        """Returns after how many of the cached `pages` a request can continue: the most, or `least`."""
        return next((end for end in range(len(pages), least, -1) if pages[end - 1] in self._attached), least)

    def find_slot(self, page: int) -> int | None:
        """Returns the slot of the checkpoint of `page`."""
        return self._attached.get(page)

    def find_likely(self, pages: Iterable[int]) -> dict[int, int]:
        """Returns the slots of the checkpoints of `pages` from which requests are likely to continue, by page."""
        return {page: self._attached[page] for page in pages if page in self._kept}

    def allocate(self) -> int:
        """Returns a slot, which must be available; evicts a checkpoint if needed."""
        if not self._pool.num_free:
            page = next(iter(self._passed or self._kept))
            self.on_evicted((page,))
            self.detach((page,))
            self.num_evicted += 1
        return self._pool.allocate(1)[0]

    def allocate_for_checkpoint(self, former: int | None = None, *, is_likely: bool = True) -> int | None:
        """Returns a slot if one is available. The checkpoint of page `former` is evicted rather than others.

        One that is not `is_likely` evicts none that is.
        """
        if not self._pool.num_free and former in self._kept:
            self.detach([former])
        num_available = self.num_available if is_likely else self._pool.num_free + len(self._passed)
        return self.allocate() if num_available else None

    def free(self, slots: Sequence[int]) -> None:
        self._pool.free(slots)

    def admit(self, req: Req) -> None:
        """Gives `req` a slot of its own, which must be available."""
        req.state_slot = self.allocate()

    def reserve(self, req: Req) -> bool:
        """Gives a row that was in a failed step a spare slot if it needs one; returns False if none is available."""
        if req.pending.is_suspect and req.state_source == req.state_slot and req.spare_slot == NO_STATE:
            if not self.num_available:
                return False
            req.spare_slot = self.allocate()
        return True

    def release(self, req: Req) -> None:
        """Frees the spare slot of `req` if it does not need it any more."""
        if req.spare_slot != NO_STATE and not req.pending.is_suspect:
            self._pool.free((req.spare_slot,))
            req.spare_slot = NO_STATE

    def attach(self, page: int, slot: int, *, is_likely: bool) -> bool:
        """Makes `slot` the checkpoint of `page`; returns False if it has one.

        `is_likely`: requests are likely to continue there, so that it is evicted after those at intervals.
        """
        if page in self._attached:
            return False
        self._attached[page] = slot
        (self._kept if is_likely else self._passed)[page] = None
        return True

    def detach(self, pages: Iterable[int]) -> None:
        """Frees the checkpoints of `pages`, if they have any."""
        for page in pages:
            slot = self._attached.pop(page, None)
            if slot is not None:
                del self._queue_of(page)[page]
                self._pool.free((slot,))

    def drop(self, page: int | None) -> None:
        """Frees the checkpoint of `page`, unless a request continues from it."""
        if page in self._kept:
            self.detach([page])

    def enter(self, req: Req, num_before: int) -> None:
        """Lets `req` continue from the checkpoint of its last page, after its pages from `num_before` on were found."""
        self.use(req, req.pages[-1])

    def use(self, req: Req, page: int) -> None:
        """Lets `req` continue from the checkpoint of `page`."""
        self.leave(req)
        self._num_users[page] += 1
        self._passed.pop(page, None)
        self._kept.pop(page, None)
        req.state_page, req.state_source = page, self._attached[page]

    def leave(self, req: Req) -> None:
        """Lets `req` continue from its own slot."""
        page = req.state_page
        req.state_page, req.state_source = None, req.state_slot
        if page is not None:
            self._num_users[page] -= 1
            if not self._num_users[page]:
                del self._num_users[page]
                self._kept[page] = None

    def pass_by(self, pages: Iterable[int]) -> None:
        """Lets checkpoints of `pages` be evicted before others: a request continues from a later one."""
        for page in pages:
            if page in self._kept:
                del self._kept[page]
                self._passed[page] = None

    def merge(self, req: Req, start: int, cached: Sequence[int]) -> None:
        """Moves checkpoints of pages of `req` from `start` on to the `cached` ones that replace them and have none."""
        for own, page in zip(req.pages[start:], cached, strict=False):
            if own in self._attached and own not in self._num_users and page not in self._attached:
                queue = self._queue_of(own)
                del queue[own]
                queue[page] = None
                self._attached[page] = self._attached.pop(own)

    def close(self, req: Req) -> None:
        """Frees the slots of `req`. Its checkpoints stay."""
        self.leave(req)
        self._pool.free([slot for slot in (req.state_slot, req.spare_slot) if slot != NO_STATE])
        req.state_slot = req.spare_slot = req.state_source = NO_STATE

    def gauges(self) -> dict[str, float]:
        """Returns sizes and counters by name."""
        return {
            "state_slots_all": self.num_slots,
            "state_slots_in_use": self.num_slots - self.num_available,
            "state_checkpoints": len(self._attached),
            "state_checkpoints_evicted": self.num_evicted,
        }

    def check(self, reqs: Iterable[Req], cached: Collection[int]) -> None:
        """Asserts that no slot is used twice, and that each checkpoint without a user can be evicted.

        Slots that steps in flight store to are not known here.
        """
        reqs = list(reqs)
        users = Counter(req.state_page for req in reqs if req.state_page is not None)
        assert users == self._num_users, "the users of checkpoints were miscounted"
        unused = self._attached.keys() - users
        assert unused == {*self._passed, *self._kept}, "a checkpoint without a user cannot be evicted"
        assert len(unused) == len(self._passed) + len(self._kept), "a checkpoint would be evicted twice"
        assert users.keys() <= self._attached.keys(), "a request continues from a page without a checkpoint"
        assert self._attached.keys() <= {*cached, *(page for req in reqs for page in req.pages)}, "a page was freed"
        for req in reqs:
            source = req.state_slot if req.state_page is None else self._attached[req.state_page]
            assert req.state_source in (source, NO_STATE), "a request continues from another slot"
            assert req.state_source != NO_STATE or not req.num_computed_tokens, "a request has lost its state"
        own = [slot for req in reqs for slot in (req.state_slot, req.spare_slot) if slot != NO_STATE]
        used = [*own, *self._attached.values(), *self._pool.free_pages()]
        assert len(set(used)) == len(used) <= self.num_slots, "a slot has two owners"

    def _queue_of(self, page: int) -> dict[int, None]:
        """Returns where `page`, whose checkpoint no request continues from, waits for its eviction."""
        return self._passed if page in self._passed else self._kept
