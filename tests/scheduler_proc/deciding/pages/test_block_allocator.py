"""The owners of pages at each point of a request's life."""

from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Limits, PendingReq, State
from tests.scheduler_proc.clients import VOCAB_SIZE, user_msg

LIMITS = Limits(64, VOCAB_SIZE, ())
IDS = list(range(14))


def start(cache: BlockAllocator, uid: int, ids: list[int]) -> Req:
    pending = PendingReq(user_msg(uid, ids), LIMITS, 1)
    req = cache.open(pending)
    pending.state = State.PREFILL
    cache.find_prefix(req)
    return req


def compute(cache: BlockAllocator, req: Req, num_tokens: int) -> None:
    """Lets `req` have `num_tokens` in all computed, as a step does."""
    assert cache.grow(req, num_tokens)
    req.num_computed_tokens = num_tokens
    cache.share(req)


def counts(cache: BlockAllocator) -> tuple[int, int, int]:
    return cache.num_free, cache.num_cached, cache.num_held


def test_a_page_goes_from_free_to_held_to_cached_to_free():
    cache = BlockAllocator(10, 4)
    req = start(cache, 1, IDS)
    assert cache.grow(req, 14)
    assert counts(cache) == (6, 0, 4)
    compute(cache, req, 14)
    assert counts(cache) == (6, 3, 1)
    cache.check([req])
    cache.close(req)
    assert counts(cache) == (7, 3, 0)
    other = start(cache, 2, [40] * 40)
    assert cache.grow(other, 40)
    assert counts(cache) == (0, 0, 10)
    cache.check([other])


def test_pages_computed_twice_become_one():
    cache = BlockAllocator(10, 4)
    first, second = start(cache, 1, IDS), start(cache, 2, IDS)
    compute(cache, first, 14)
    compute(cache, second, 14)
    assert first.pages[:3] == second.pages[:3]
    assert first.pages[3] != second.pages[3]
    assert counts(cache) == (5, 3, 2)
    cache.check([first, second])
    cache.close(first)
    assert cache.num_available == 6, "the other still needs the shared pages"
    cache.close(second)
    assert cache.num_available == 10
    cache.check([])


def test_a_request_in_mid_page_takes_over_the_page_that_another_finished():
    cache = BlockAllocator(10, 4)
    slow, fast = start(cache, 1, IDS), start(cache, 2, IDS)
    compute(cache, slow, 6)
    compute(cache, fast, 13)
    cache.find_prefix(slow)
    assert slow.num_computed_tokens == 12
    assert slow.pages == fast.pages[:3]
    cache.check([slow, fast])


def test_one_token_is_always_left_to_compute():
    cache = BlockAllocator(10, 4)
    first = start(cache, 1, IDS[:12])
    compute(cache, first, 12)
    cache.close(first)
    assert start(cache, 2, IDS[:12]).num_computed_tokens == 8
    assert start(cache, 3, IDS[:13]).num_computed_tokens == 12


def test_too_little_room_changes_nothing():
    cache = BlockAllocator(4, 4)
    req, other = start(cache, 1, IDS), start(cache, 2, [30] * 8)
    compute(cache, other, 8)
    assert not cache.grow(req, 12)
    assert counts(cache) == (2, 2, 0)
    cache.check([req, other])
    assert cache.grow(req, 8)


def test_pages_that_make_room_are_counted_and_flushed_ones_are_not():
    cache = BlockAllocator(4, 4)
    first = start(cache, 1, IDS)
    compute(cache, first, 12)
    cache.close(first)
    assert counts(cache) == (1, 3, 0)
    second = start(cache, 2, [30] * 12)
    assert cache.grow(second, 12)
    assert cache.num_evicted == 2
    cache.flush()
    assert cache.num_evicted == 2


def test_what_cannot_be_trusted_is_not_found_again():
    cache = BlockAllocator(10, 4)
    req = start(cache, 1, IDS)
    compute(cache, req, 9)
    cache.close(req, is_reusable=False)
    assert counts(cache) == (10, 0, 0)
    cache.check([])


def test_what_others_use_stays_when_one_cannot_be_trusted():
    cache = BlockAllocator(10, 4)
    req, other = start(cache, 1, IDS), start(cache, 2, [*IDS[:8], *range(30, 36)])
    compute(cache, req, 13)
    compute(cache, other, 13)
    cache.close(req, is_reusable=False)
    assert cache.num_cached == 3
    cache.check([other])


def test_without_sharing_pages_go_back_at_once():
    cache = BlockAllocator(10, 4, is_sharing=False)
    req = start(cache, 1, IDS)
    compute(cache, req, 14)
    assert counts(cache) == (6, 0, 4)
    cache.close(req)
    assert counts(cache) == (10, 0, 0)
    assert start(cache, 2, IDS).num_computed_tokens == 0
