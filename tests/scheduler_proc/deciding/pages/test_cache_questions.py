"""Explanations of cache hits: the length of a hit, the requests that computed it, and the reason for its end."""

import random
from typing import Any

import pytest

from messages.columns import pack_int32
from messages.ring.cache import CacheExplained, CacheListed, CacheSource, ExplainCache, ListCache
from messages.ring.requests import FlushCache
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg

PROMPT = [(place * place + 3) % VOCAB_SIZE for place in range(30)]


class Asked(Bench):
    """A bench whose cache is asked; a page has four tokens."""

    def explain(self, prompt: list[int], salt: str = "") -> CacheExplained:
        self.scheduler.receive(ExplainCache(99, pack_int32(prompt), salt))
        (answer,) = self.scheduler.pop_replies()
        self.scheduler.check()
        assert isinstance(answer, CacheExplained)
        assert answer.uid == 99
        return answer

    def tree(self, limit: int = 100) -> CacheListed:
        self.scheduler.receive(ListCache(98, limit))
        (answer,) = self.scheduler.pop_replies()
        assert isinstance(answer, CacheListed)
        return answer

    def serve(self, uid: int, prompt: list[int], **params: Any) -> None:
        self.send(user_msg(uid, prompt, max_tokens=1, ignore_eos=True, **params))
        self.run()


def test_nothing_is_cached_at_first():
    answer = Asked().explain(PROMPT)
    assert (answer.num_hit_tokens, answer.ended_by, answer.sources) == (0, "not_cached", ())


def test_the_same_prompt_is_found_up_to_what_must_be_computed():
    bench = Asked()
    bench.serve(1, PROMPT)
    answer = bench.explain(PROMPT)
    assert (answer.num_hit_tokens, answer.ended_by, answer.position) == (28, "page_not_full", 28)
    assert answer.sources == (CacheSource(1, 0, 28),)
    answer = bench.explain(PROMPT[:28])
    assert (answer.num_hit_tokens, answer.ended_by) == (24, "page_not_full")
    assert bench.explain(PROMPT[:1]).ended_by == "page_not_full"


def test_the_first_token_that_differs_is_notified_wherever_it_is():
    bench = Asked()
    bench.serve(1, PROMPT)
    for place in range(1, 28):
        other = [*PROMPT[:place], (PROMPT[place] + 1) % VOCAB_SIZE, *PROMPT[place + 1 :]]
        answer = bench.explain(other)
        assert (answer.ended_by, answer.position, answer.other_uid) == ("different_token", place, 1), place
        assert answer.cached_token == PROMPT[place]
        assert answer.num_hit_tokens == place // 4 * 4


def test_each_part_is_notified_with_the_request_that_computed_it():
    bench = Asked()
    bench.serve(1, PROMPT[:13])
    bench.serve(2, PROMPT)
    fork = [*PROMPT[:20], *[1] * 10]
    bench.serve(3, fork)
    assert bench.explain(PROMPT).sources == (CacheSource(1, 0, 12), CacheSource(2, 12, 28))
    assert bench.explain(fork).sources == (CacheSource(1, 0, 12), CacheSource(2, 12, 20), CacheSource(3, 20, 28))


def test_what_was_evicted_is_distinguished_from_what_never_was_there():
    bench = Asked(num_pages=16, max_num_batched_tokens=64)
    bench.serve(1, PROMPT)
    bench.serve(2, [1] * 40)
    bench.serve(3, [2] * 40)
    answer = bench.explain(PROMPT)
    assert answer.num_hit_tokens < 28
    assert (answer.ended_by, answer.other_uid) == ("evicted", 1)
    assert answer.evicted_s >= 0
    assert bench.explain([5] * 30).ended_by == "not_cached"


def test_a_flush_is_an_eviction():
    bench = Asked()
    bench.serve(1, PROMPT)
    bench.serve(2, PROMPT, cache_salt="x")
    bench.send(FlushCache(5))
    assert bench.explain(PROMPT).ended_by == "evicted"
    assert bench.explain(PROMPT, "x").other_uid == 2


def test_another_salt_is_notified():
    bench = Asked()
    bench.serve(1, PROMPT, cache_salt="mine")
    assert bench.explain(PROMPT, "mine").num_hit_tokens == 28
    answer = bench.explain(PROMPT)
    assert (answer.num_hit_tokens, answer.ended_by, answer.other_uid) == (0, "salt", 1)
    assert bench.explain(PROMPT, "other").ended_by == "salt"


def test_a_cache_that_is_off_reports_it():
    bench = Asked(is_sharing=False)
    bench.serve(1, PROMPT)
    assert bench.explain(PROMPT).ended_by == "disabled"


def test_the_tree_is_notified_from_its_largest_node_on():
    bench = Asked(num_pages=64)
    bench.serve(1, PROMPT)
    bench.serve(2, [*PROMPT[:8], *[1] * 8])
    bench.serve(3, [7] * 8, cache_salt="s")
    listed = bench.tree()
    assert listed.nodes[0].num_tokens == 20
    shown = [(node.uid, node.start, node.num_tokens, node.num_children, node.is_salted) for node in listed.nodes]
    assert sorted(shown) == [
        (1, 0, 8, 2, False),
        (1, 8, 20, 0, False),
        (2, 8, 8, 0, False),
        (3, 0, 8, 0, True),
    ]
    assert (listed.num_nodes, listed.num_cached_tokens, listed.num_evictable_tokens) == (4, 44, 44)
    assert [node.num_tokens for node in bench.tree(1).nodes] == [20]
    upper = next(node for node in listed.nodes if (node.uid, node.start) == (1, 0))
    assert {node.parent for node in listed.nodes if node.start == 8} == {upper.number}


@pytest.mark.parametrize("seed", range(5))
def test_the_text_is_what_a_request_then_finds(seed: int):
    """Random prompts from a small alphabet: many share beginnings, and pages are short."""
    rng = random.Random(seed)
    bench = Asked(num_pages=24, max_num_batched_tokens=64)
    for uid in range(1, 60):
        prompt = [rng.randrange(2) + 1 for _ in range(rng.randrange(1, 40))]
        salt = rng.choice(["", "", "a"])
        answer = bench.explain(prompt, salt)
        bench.serve(uid, prompt, cache_salt=salt)
        assert bench.end(uid).usage.cached_tokens == answer.num_hit_tokens
        assert sum(source.end - source.start for source in answer.sources) == answer.num_hit_tokens
        if answer.ended_by == "different_token":
            assert answer.cached_token != prompt[answer.position]
            assert answer.num_hit_tokens <= answer.position < answer.num_hit_tokens + 4
