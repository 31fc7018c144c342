"""Evicted checkpoints of recurrent states return from a store: with their pages, or for pages that are still cached."""

import random
from collections.abc import Sequence

import pytest

from messages.columns import pack_int32
from messages.ring.cache import CacheExplained, ExplainCache
from messages.ring.requests import AbortMsg, UserMsg
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output
from tests.scheduler_proc.simulated_store import SimulatedStates, SimulatedStore

NUM_PAGES, PAGE_SIZE, MAX_MODEL_LEN, NUM_SLOTS = 17, 4, 64, 8
NO_EOS = VOCAB_SIZE


def make_bench(
    store: SimulatedStore, num_slots: int = NUM_SLOTS, num_pages: int = NUM_PAGES, pages: SimulatedPages | None = None
) -> Bench:
    states = num_slots, 100
    return Bench(num_pages, PAGE_SIZE, MAX_MODEL_LEN, eos_token_id=NO_EOS, store=store, states=states, pages=pages)


def prompt_of(number: int, num_tokens: int = 48) -> list[int]:
    return [(number * 7 + place * place) % VOCAB_SIZE for place in range(num_tokens)]


def serve(bench: Bench, uid: int, prompt: Sequence[int], num_tokens: int = 3) -> int:
    """Returns how many tokens were cached."""
    message = user_msg(uid, prompt, num_tokens, ignore_eos=True)
    bench.send(message)
    bench.run()
    assert bench.output(uid) == expected_output(prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (NO_EOS,))
    return bench.end(uid).usage.cached_tokens


def explain(bench: Bench, prompt: Sequence[int]) -> CacheExplained:
    bench.scheduler.receive(ExplainCache(9, pack_int32(prompt)))
    (explained,) = bench.scheduler.pop_replies()
    assert isinstance(explained, CacheExplained)
    return explained


@pytest.fixture
def states() -> SimulatedStates:
    return SimulatedStates()


@pytest.fixture
def store(states: SimulatedStates) -> SimulatedStore:
    return SimulatedStore(PAGE_SIZE, states=states)


def test_pages_and_the_checkpoint_behind_them_come_back(store: SimulatedStore, states: SimulatedStates):
    bench = make_bench(store)
    assert serve(bench, 1, prompt_of(1)) == 0
    assert serve(bench, 2, prompt_of(2)) == 0
    explained = explain(bench, prompt_of(1))
    assert explained.num_hit_tokens == 0
    assert 0 < explained.position < 44, "the first pages are still cached, without a checkpoint"
    assert explained.tier_tokens == {"disk": 40}
    assert serve(bench, 3, prompt_of(1)) == 40
    assert (store.num_loaded, states.num_loaded) == (10 - explained.position // PAGE_SIZE, 1)


def test_the_next_turn_hits_up_to_the_last_page_of_the_answer(store: SimulatedStore):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1, 20), 13)
    turn = [*prompt_of(1, 20), *bench.output(1), 3, 3]
    serve(bench, 2, prompt_of(2, 60))
    assert serve(bench, 3, turn) == 32
    bench.scheduler.save_cache(60.0)
    successor = make_bench(store)
    assert serve(successor, 1, turn) == 32


def test_only_the_checkpoint_is_loaded_if_the_pages_are_cached(store: SimulatedStore, states: SimulatedStates):
    bench = make_bench(store, num_slots=4, num_pages=100)
    for number in range(1, 6):
        serve(bench, number, prompt_of(number))
    assert bench.gauge("state_checkpoints_evicted") > 0
    assert bench.gauge("pages_evicted") == 0
    explained = explain(bench, prompt_of(1))
    assert (explained.num_hit_tokens, explained.ended_by, explained.position) == (0, "no_checkpoint", 44)
    assert explained.tier_tokens == {"disk": 40}
    assert serve(bench, 6, prompt_of(1)) == 40
    assert (store.num_loads, states.num_loads) == (0, 1)
    assert serve(bench, 7, prompt_of(1)) == 44, "where the last one left the cached text"
    assert states.num_loads == 1, "it is a checkpoint of the cache again"


def test_pages_without_a_checkpoint_behind_them_stay_in_the_store(store: SimulatedStore, states: SimulatedStates):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    states.kept.clear()
    assert explain(bench, prompt_of(1)).tier_tokens == {}
    assert serve(bench, 3, prompt_of(1)) == 0
    assert store.num_loads == 0


def test_a_checkpoint_that_cannot_be_read_costs_a_request_what_is_behind_the_one_before(
    store: SimulatedStore, states: SimulatedStates, monkeypatch: pytest.MonkeyPatch
):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1, 28))
    serve(bench, 2, prompt_of(1))
    bench.scheduler.save_cache(60.0)
    bench = make_bench(store)
    fails = [True]
    monkeypatch.setattr(states, "_fails", lambda: bool(fails) and fails.pop())
    assert serve(bench, 3, prompt_of(1)) == 28
    assert states.num_loads == 2
    assert store.num_loaded == 10, "the pages of the first load are cached"


def test_two_requests_of_one_beginning_have_one_load(store: SimulatedStore, states: SimulatedStates):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1, 28))
    serve(bench, 2, prompt_of(2, 60))
    bench.send(*(user_msg(uid, prompt_of(1, 28), 3, ignore_eos=True) for uid in (3, 4)))
    bench.run()
    assert states.num_loads == 1
    assert bench.end(3).usage.cached_tokens == bench.end(4).usage.cached_tokens == 20


def test_who_leaves_while_it_is_loaded_leaves_nothing_behind(store: SimulatedStore, states: SimulatedStates):
    bench = make_bench(store)
    serve(bench, 1, prompt_of(1))
    serve(bench, 2, prompt_of(2))
    states.pages_at_once = 0
    bench.send(user_msg(3, prompt_of(1), 3, ignore_eos=True))
    assert bench.scheduler.schedule() is None
    assert bench.scheduler.schedule() is None
    assert states.loads
    bench.send(AbortMsg(3, 0))
    assert not states.loads
    bench.check_idle()
    assert bench.gauge("state_slots_in_use") == 0


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("keeps_pages", [False, True])
def test_texts_are_exact_whatever_is_dropped_lost_or_late(seed: int, keeps_pages: bool):
    chance = random.Random(seed)
    states = SimulatedStates(chance.choice((3, 10, 200)), chance)
    store = SimulatedStore(PAGE_SIZE, max_pages=chance.choice((6, 25, 200)), chance=chance, states=states)
    num_slots = chance.choice((3, 6, 12))
    pages = SimulatedPages(NUM_PAGES, PAGE_SIZE, num_state_slots=num_slots) if keeps_pages else None
    bench = make_bench(store, num_slots, pages=pages)
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
    assert not bench.runner.is_wrong
    for uid, (prompt, message) in messages.items():
        whole = expected_output(prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (NO_EOS,))
        output = bench.output(uid)
        assert output == whole[: len(output)]
        assert len(output) == len(whole) or bench.end(uid).finish_reason == "abort"
    assert states.num_loaded > 0
