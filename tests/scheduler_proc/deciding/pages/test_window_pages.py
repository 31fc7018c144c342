"""Window pages: what requests use, what stays cached, where a prefix hits; that none is lost, or read too late."""

import pytest

from messages.ring.cache import CacheExplained, ExplainCache
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.window_pages import WindowPages
from scheduler_proc.deciding.requests import Limits, PendingReq, State
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.soak import MAX_MODEL_LEN

SIZE, WINDOW = 4, 8
IDS = [token % VOCAB_SIZE for token in range(200)]
LIMITS = Limits(200, VOCAB_SIZE, ())


def make_cache(num_window_pages: int, num_pages: int = 100, window: int = WINDOW) -> BlockAllocator:
    return BlockAllocator(num_pages, SIZE, observers=[WindowPages(window, num_window_pages, SIZE)])


def start(cache: BlockAllocator, uid: int, ids: list[int]) -> Req:
    pending = PendingReq(user_msg(uid, ids), LIMITS, 1)
    req = cache.open(pending)
    pending.state = State.PREFILL
    cache.find_prefix(req)
    return req


def compute(cache: BlockAllocator, req: Req, num_tokens: int) -> bool:
    if not cache.grow(req, num_tokens):
        return False
    req.num_computed_tokens = num_tokens
    cache.share(req)
    cache.check([req])
    return True


def run(cache: BlockAllocator, uid: int, ids: list[int], chunk: int = 16) -> int:
    """Computes a prompt in chunks and ends; returns how many of its tokens were cached."""
    req = start(cache, uid, ids)
    num_cached = req.num_computed_tokens
    for end in (*range(num_cached + chunk, len(ids), chunk), len(ids)):
        assert compute(cache, req, end)
    cache.close(req)
    cache.check([])
    return num_cached


def test_a_long_prompt_uses_few_window_pages_at_a_time():
    cache = make_cache(num_window_pages=7)
    windows = cache.find_observer(WindowPages)
    assert windows is not None
    req = start(cache, 1, IDS)
    for end in range(16, 201, 16):
        assert compute(cache, req, end)
        assert len(req.pages) - windows.start_of(req) <= 7
    assert cache.num_available == 100 - len(req.pages)
    assert windows.gauges()["window_pages_in_use"] <= 7
    cache.close(req)
    assert windows.num_available == 7


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 13])
def test_a_prefix_hits_at_every_page_boundary_while_all_is_cached(window):
    cache = make_cache(100, window=window)
    assert run(cache, 1, IDS) == 0
    for num_same in range(1, 60):
        other = (IDS[num_same] + 1) % VOCAB_SIZE
        assert run(cache, 2, [*IDS[:num_same], other, other]) == num_same // SIZE * SIZE


def test_the_ends_of_requests_and_prompts_outlive_what_prompts_passed():
    cache = make_cache(12)
    first, second = IDS[:60], IDS[60:0:-1]
    run(cache, 1, first)
    run(cache, 2, second)  # 15 pages pass through 12 window pages
    assert run(cache, 3, [*first, 1, 1]) == 60
    assert run(cache, 4, [*second, 1, 1]) == 60
    assert run(cache, 5, [*first[:30], 2, 2]) == 0, "the middle of a prompt goes first"


def test_what_is_missing_is_computed_and_fills_the_hole():
    cache = make_cache(7)
    run(cache, 1, IDS[:60])
    assert run(cache, 2, [*IDS[:30], 2, 2]) == 0
    assert cache.num_cached == 15 + 1, "the pages themselves were cached"
    assert run(cache, 3, [*IDS[:30], 3, 3]) == 28, "where two prompts parted is a likely place"


def test_explain_reports_that_window_pages_are_missing():
    cache = make_cache(7)
    run(cache, 1, IDS[:60])
    answer = cache.answer(ExplainCache(7, user_msg(7, IDS[:30]).input_ids))
    assert isinstance(answer, CacheExplained)
    assert (answer.num_hit_tokens, answer.ended_by, answer.sources) == (0, "window_evicted", ())
    answer = cache.answer(ExplainCache(7, user_msg(7, IDS[:61]).input_ids))
    assert isinstance(answer, CacheExplained)
    assert (answer.num_hit_tokens, answer.ended_by) == (60, "page_not_full")


def test_a_prompt_that_does_not_fit_gets_nothing():
    cache = make_cache(5)
    req = start(cache, 1, IDS)
    assert compute(cache, req, 20)
    other = start(cache, 2, IDS[1:])
    assert not cache.grow(other, 16), "2 window pages of 5 are in use"
    assert cache.grow(other, 12)
    cache.check([req, other])


def test_requests_with_the_same_output_share_pages_but_not_what_each_has_passed():
    """Their pages are cached when they end; the second finds those of the first, some without a window page."""
    cache = make_cache(30)
    reqs = [start(cache, uid, IDS[:10]) for uid in (1, 2)]
    for req in reqs:
        assert cache.grow(req, 10)
        req.num_computed_tokens = 10
        cache.share(req)
        req.pending.state = State.DECODE
    for token in IDS[10:50]:
        for req in reqs:
            req.token_ids.append(token)
            assert cache.grow(req, len(req.token_ids))
        cache.check(reqs)
    for req in reqs:
        cache.close(req)
    cache.check([])
    assert cache.num_cached == 12
    assert run(cache, 3, [*IDS[:48], 1]) == 48


def test_a_request_waits_until_the_others_leave_it_window_pages():
    bench = Bench(60, SIZE, MAX_MODEL_LEN, max_num_batched_tokens=16, windows=(WINDOW, 8))
    bench.send(*(user_msg(uid, [uid] * 40, 6, ignore_eos=True) for uid in (1, 2, 3)))
    waited: set[str | None] = set()
    while bench.step():
        waited.add(bench.scheduler._policy.notes.waits_for)
    assert "window_pages" in waited
    assert bench.gauge("preemptions") == 0
    bench.check_idle()


@pytest.mark.parametrize(("num_global", "num_windowed", "window"), [(4, 22, 512), (5, 29, 1024)])
def test_a_context_of_32_k_tokens_takes_less_than_a_third(num_global, num_windowed, window):
    """The shapes of Gemma 3 1B and 4B, chunks of 2,048 tokens, then 1,024 tokens one by one: pages at the peak."""
    windows = WindowPages(window, 400, 16)
    cache = BlockAllocator(2048, 16, observers=[windows])
    pending = PendingReq(user_msg(1, [1] * 31_744, 1024), Limits(32_768, VOCAB_SIZE, ()), 1)
    req = cache.open(pending)
    pending.state = State.PREFILL
    peak = 0
    for end in (*range(2048, 31_744, 2048), 31_744):
        assert cache.grow(req, end)
        peak = max(peak, len(req.pages) - windows.start_of(req))
        req.num_computed_tokens = end
        cache.share(req)
    pending.state = State.DECODE
    for _ in range(1024):
        req.token_ids.append(1)
        assert cache.grow(req, len(req.token_ids))
        assert len(req.pages) - windows.start_of(req) <= windows.num_steady
    cache.check([req])
    assert len(req.pages) == 2048
    assert peak == windows.num_steady + 128 - 1
    share = (num_global * 2048 + num_windowed * peak) / (2048 * (num_global + num_windowed))
    assert share < 0.24
