"""An observer is notified of every page's way from allocation to reuse, whatever happens to its requests."""

import random
from collections.abc import Collection, Sequence

from messages.ring.requests import AbortMsg
from scheduler_proc.deciding.pages.page_observer import PageObserver
from scheduler_proc.deciding.pages.running_request import Req
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg


class PageAccount(PageObserver):
    """Tracks filled and cached pages by notifications alone."""

    def __init__(self) -> None:
        self.filled: set[int] = set()
        self.cached: set[int] = set()
        self.num_evicted = 0
        self.num_closed = 0

    def on_filled(self, req: Req, num_pages: int, clock: int) -> None:
        self.filled.update(req.pages[:num_pages])

    def on_cached(self, req: Req, start: int, end: int) -> None:
        assert self.filled.issuperset(req.pages[start:end]), "a page is cached that was not filled"
        self.cached.update(req.pages[start:end])

    def on_evicted(self, pages: Sequence[int]) -> None:
        assert self.cached.issuperset(pages), "a page is evicted that was not cached"
        self.num_evicted += len(pages)

    def on_freed(self, pages: Collection[int]) -> None:
        self.filled.difference_update(pages)
        self.cached.difference_update(pages)

    def on_closed(self, req: Req) -> None:
        self.num_closed += 1

    def gauges(self) -> dict[str, float]:
        return {"pages_filled": len(self.filled)}

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        assert self.cached == set(cached), "the observer knows other cached pages than there are"
        assert self.filled.isdisjoint(free), "a free page is filled"


def test_the_account_of_an_observer_matches_after_every_move():
    bench, account, chance = Bench(num_pages=17), PageAccount(), random.Random(5)
    bench.cache.add_observer(account)
    for uid in range(1, 40):
        prompt = [chance.randrange(3) for _ in range(chance.randrange(1, 30))] + [uid % VOCAB_SIZE]
        bench.send(user_msg(uid, prompt, chance.randrange(1, 20), ignore_eos=True))
        if chance.random() < 0.2:
            bench.send(AbortMsg(uid, 0))
        for _ in range(chance.randrange(8)):
            bench.step()
    bench.run()
    assert account.num_evicted == bench.gauge("pages_evicted") > 0
    assert account.num_closed > 39
    assert bench.gauge("pages_filled") == len(account.filled) > 0
    assert bench.cache.find_observer(PageAccount) is account
