"""Evicted pages return from a store: for which requests, when that pays, and what happens if loads fail or hang."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from messages.columns import pack_int32
from messages.ring.cache import CacheExplained, CacheListed, ExplainCache, ListCache
from messages.ring.requests import AbortMsg, FlushCache, UserMsg
from scheduler_proc.deciding.pages import page_tiers
from scheduler_proc.deciding.pages.page_tiers import PageTiers
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output
from tests.scheduler_proc.simulated_store import SimulatedStore

NUM_PAGES, PAGE_SIZE, MAX_MODEL_LEN = 17, 4, 64
NO_EOS = VOCAB_SIZE


def make_bench(store: SimulatedStore, pages: SimulatedPages | None = None) -> Bench:
    return Bench(NUM_PAGES, PAGE_SIZE, MAX_MODEL_LEN, eos_token_id=NO_EOS, store=store, pages=pages)


def prompt_of(number: int, num_tokens: int = 41) -> list[int]:
    return [(number * 7 + place * place) % VOCAB_SIZE for place in range(num_tokens)]


def serve(bench: Bench, uid: int, prompt: Sequence[int], num_tokens: int = 3, **params: object) -> int:
    """Returns how many tokens were cached."""
    message = user_msg(uid, prompt, num_tokens, ignore_eos=True, **params)
    bench.send(message)
    bench.run()
    assert bench.output(uid) == expected(prompt, message)
    return bench.end(uid).usage.cached_tokens


def expected(prompt: Sequence[int], message: UserMsg) -> list[int]:
    return expected_output(prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (NO_EOS,))


@pytest.fixture
def store() -> SimulatedStore:
    return SimulatedStore(PAGE_SIZE)


def test_what_was_evicted_comes_back_and_counts_as_cached(store: SimulatedStore):
    bench = make_bench(store)
    assert serve(bench, 1, prompt_of(1)) == 0
    assert serve(bench, 2, prompt_of(2)) == 0
    assert store.num_put > 0
    assert serve(bench, 3, prompt_of(1)) == 40
    assert store.num_loaded > 0
    assert bench.gauge("prefix_hit_tokens") == 40


def test_several_pages_are_evicted_at_once_for_one_put(store: SimulatedStore, monkeypatch: pytest.MonkeyPatch):
    sizes, put = list[int](), store.put

    def count(pages: Sequence[int], digests: Sequence[bytes]) -> None:
        sizes.append(len(pages))
        put(pages, digests)

    monkeypatch.setattr(store, "put", count)
    bench = Bench(4 * 32, PAGE_SIZE, MAX_MODEL_LEN, eos_token_id=NO_EOS, store=store)
    for uid in range(1, 20):
        serve(bench, uid, prompt_of(uid, 29), num_tokens=20)
    assert sizes
    assert min(sizes) == 4, "a page at a time is needed while the answer grows"
    assert bench.gauge("pages_evicted") == sum(sizes)


def test_the_beginning_is_found_in_the_cache_and_the_rest_in_the_store(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2, 30))
    (explained,) = ask(bench, ExplainCache(9, pack_int32(prompt_of(1))))
    assert isinstance(explained, CacheExplained)
    assert 0 < explained.num_hit_tokens < 40
    assert explained.tier_tokens == {"disk": 40 - explained.num_hit_tokens}
    assert serve(bench, 3, prompt_of(1)) == 40
    assert store.num_loaded == (40 - explained.num_hit_tokens) // PAGE_SIZE
    (listed,) = ask(bench, ListCache(10, 5))
    assert isinstance(listed, CacheListed)
    assert listed.tier_tokens == {"disk": PAGE_SIZE * len(store.kept)}


def ask(bench: Bench, question: ExplainCache | ListCache) -> Sequence[object]:
    bench.scheduler.receive(question)
    return bench.scheduler.pop_replies()


def test_another_salt_finds_nothing(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1), cache_salt="mine")
    serve(bench, 2, prompt_of(2))
    assert serve(bench, 3, prompt_of(1), cache_salt="theirs") == 0
    assert serve(bench, 4, prompt_of(1)) == 0
    assert store.num_loaded == 0
    assert serve(bench, 5, prompt_of(1), cache_salt="mine") == 40


def test_a_preempted_request_continues_with_its_pages_from_the_store(store: SimulatedStore):
    bench = make_bench(store)
    messages = [user_msg(uid, prompt_of(uid, 20), 24, ignore_eos=True) for uid in (1, 2, 3)]
    bench.send(*messages)
    bench.run()
    for uid, message in enumerate(messages, start=1):
        assert bench.output(uid) == expected(prompt_of(uid, 20), message)
    assert bench.gauge("preemptions") > 0
    assert store.num_loaded > 0


def test_others_continue_while_one_is_loaded(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1, 21))
    serve(bench, 2, prompt_of(2, 60))
    store.pages_at_once = 0
    bench.send(user_msg(3, prompt_of(1, 21), 3, ignore_eos=True), user_msg(4, prompt_of(4, 12), 5, ignore_eos=True))
    while 4 not in {uid for uid, _ in bench.inbox.finished}:
        assert set(bench.step()) == {4}
    store.pages_at_once = 1
    bench.run()
    assert bench.end(3).usage.cached_tokens == 20


def test_two_requests_of_one_beginning_have_one_load(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1, 21))
    serve(bench, 2, prompt_of(2, 60))
    bench.send(*(user_msg(uid, prompt_of(1, 21), 3, ignore_eos=True) for uid in (3, 4)))
    bench.run()
    assert store.num_loads == 1
    assert bench.end(3).usage.cached_tokens == bench.end(4).usage.cached_tokens == 20


def test_who_leaves_while_it_is_loaded_leaves_nothing_behind(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    store.pages_at_once = 0
    bench.send(user_msg(3, prompt_of(1), 3, ignore_eos=True))
    assert bench.scheduler.schedule() is None
    assert store.loads
    bench.send(AbortMsg(3, 0))
    assert not store.loads
    bench.check_idle()


def test_what_has_come_of_a_load_that_hangs_is_used(store: SimulatedStore, monkeypatch: pytest.MonkeyPatch):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    (explained,) = ask(bench, ExplainCache(9, pack_int32(prompt_of(1))))
    assert isinstance(explained, CacheExplained)
    now_s = 1.0
    monkeypatch.setattr(page_tiers, "time", SimpleNamespace(monotonic=lambda: now_s))
    store.pages_at_once = 2
    message = user_msg(3, prompt_of(1), 3, ignore_eos=True)
    bench.send(message)
    assert bench.scheduler.schedule() is None, "the load begins"
    assert bench.scheduler.schedule() is None, "two pages have come"
    store.pages_at_once = 0
    now_s += page_tiers.LOAD_TIMEOUT_S
    assert bench.scheduler.schedule() is None
    now_s += 0.1
    bench.run()
    assert not store.loads
    assert bench.end(3).usage.cached_tokens == explained.num_hit_tokens + 2 * PAGE_SIZE
    assert bench.output(3) == expected(prompt_of(1), message)
    num_before, store.pages_at_once = store.num_loads, 1000
    serve(bench, 4, prompt_of(2))
    assert store.num_loads == num_before, "for a while none begins"
    now_s += page_tiers.REST_S
    assert serve(bench, 5, prompt_of(1)) == 40


def test_a_slow_store_is_asked_again_now_and_then(store: SimulatedStore):
    bench = make_bench(store)
    tiers = bench.cache.find_observer(PageTiers)
    assert tiers is not None
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    tiers.record_prefill(1000, 1.0)
    store.page_s = PAGE_SIZE / 1000 * 2
    assert serve(bench, 3, prompt_of(1)) < 40
    assert store.num_loads == 0
    for uid in range(4, 60, 2):
        serve(bench, uid, prompt_of(2))
        serve(bench, uid + 1, prompt_of(1))
    assert 0 < store.num_loads < 10
    store.page_s /= 4
    num_before = store.num_loads
    serve(bench, 60, prompt_of(2))
    assert store.num_loads == num_before + 1


def test_pages_that_no_one_requests_again_are_not_put_until_someone_does(
    store: SimulatedStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(page_tiers, "NUM_HOPED_FOR", 64)
    bench = make_bench(store)
    tiers = bench.cache.find_observer(PageTiers)
    assert tiers is not None
    tiers.record_prefill(1000, 1.0)
    store.page_put_s = PAGE_SIZE / 1000 / 10
    chance = random.Random(3)
    prompts = [[chance.randrange(VOCAB_SIZE) for _ in range(41)] for _ in range(120)]
    for uid, prompt in enumerate(prompts, start=1):
        serve(bench, uid, prompt)
    assert bench.gauge("tier_skipped_pages") > 0.3 * bench.gauge("pages_evicted")
    assert 300 < store.num_put < 900
    num_before = store.num_put
    for uid, prompt in enumerate(prompts[60:], start=200):
        serve(bench, uid, prompt)
    assert store.num_put > num_before


def test_that_putting_has_become_cheap_is_noticed(store: SimulatedStore):
    bench = make_bench(store)
    tiers = bench.cache.find_observer(PageTiers)
    assert tiers is not None
    tiers.record_prefill(1000, 1.0)
    store.page_put_s = 1.0
    chance = random.Random(3)
    uid = 0
    while bench.gauge("pages_evicted") < 2 * page_tiers.NUM_SKIPPED_AT_ONCE:
        serve(bench, uid := uid + 1, [chance.randrange(VOCAB_SIZE) for _ in range(41)])
    assert 0 < store.num_put < 20
    store.page_put_s = 0.0
    num_before = store.num_put
    serve(bench, uid + 1, prompt_of(1))
    assert store.num_put > num_before


def test_a_flush_empties_the_store_too(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    bench.send(FlushCache(9, is_forced=False))
    assert not store.kept
    assert serve(bench, 3, prompt_of(1)) == 0


def test_at_the_end_the_cached_pages_are_put_down_but_not_those_a_successor_takes_over(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    bench.scheduler.save_cache(0.0)
    assert len(store.kept) == 8, "one batch, and then the time is over"
    bench.scheduler.save_cache(60.0)
    assert len(store.kept) == 10
    successor = make_bench(store)
    assert serve(successor, 1, prompt_of(1)) == 40
    kept = make_bench(SimulatedStore(PAGE_SIZE), pages=SimulatedPages(NUM_PAGES, PAGE_SIZE))
    serve(kept, 1, prompt_of(1))
    kept.scheduler.close_queue()
    kept.scheduler.save_cache(60.0)
    assert kept.gauge("disk_pages") == 0


def test_pages_of_a_predecessor_are_known_by_their_names(store: SimulatedStore):
    pages = SimulatedPages(NUM_PAGES, PAGE_SIZE)
    serve(make_bench(store, pages=pages), 1, prompt_of(1))
    successor = make_bench(store, pages=pages)
    assert successor.gauge("pages_recovered") == 10
    serve(successor, 2, prompt_of(2))
    assert serve(successor, 3, prompt_of(1)) == 40
    assert store.num_loaded > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keeps_pages", [False, True])
def test_texts_are_exact_whatever_is_dropped_lost_or_late(seed: int, keeps_pages: bool):
    chance = random.Random(seed)
    store = SimulatedStore(PAGE_SIZE, max_pages=chance.choice((6, 25, 200)), chance=chance)
    bench = make_bench(store, pages=SimulatedPages(NUM_PAGES, PAGE_SIZE) if keeps_pages else None)
    beginnings = [prompt_of(number, 24) for number in range(3)]
    messages: dict[int, tuple[list[int], UserMsg]] = {}
    for uid in range(1, 60):
        prompt = chance.choice(beginnings)[: chance.randrange(4, 25)] + [uid % VOCAB_SIZE] * chance.randrange(1, 12)
        salt = chance.choice(("", "", "mine"))
        messages[uid] = prompt, user_msg(uid, prompt, chance.randrange(1, 20), ignore_eos=True, cache_salt=salt)
        bench.send(messages[uid][1])
        if chance.random() < 0.1:
            bench.send(AbortMsg(chance.randrange(1, uid + 1), 0))
        for _ in range(chance.randrange(12)):
            bench.step()
    bench.run()
    for uid, (prompt, message) in messages.items():
        whole = expected(prompt, message)
        output = bench.output(uid)
        assert output == whole[: len(output)]
        assert len(output) == len(whole) or bench.end(uid).finish_reason == "abort"
    assert store.num_loaded > 0
