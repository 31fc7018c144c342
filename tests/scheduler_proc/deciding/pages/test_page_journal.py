"""Pages outlive a scheduler: after a crash at any point, or damage, its successor uses only intact pages."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.columns import pack_int32
from scheduler_proc.deciding.pages.page_journal import PageJournal
from scheduler_proc.deciding.pages.radix import Node, RadixTree
from scheduler_proc.deciding.requests import salt_of
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_drafter import SimulatedDrafter
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output

NUM_PAGES, PAGE_SIZE, MAX_MODEL_LEN = 40, 4, 64
NO_EOS = VOCAB_SIZE

Attached = Mapping[str, Any]
"""`windows` or `states`, as a `Bench` takes them."""
NOTHING: Attached = {}


class Pages(SimulatedPages):
    """Memory whose slots hold what tests put there."""

    def __init__(self, num_pages: int = 8, page_size: int = 2):
        super().__init__(num_pages, page_size)
        self.num_pages = num_pages

    def journal(self) -> PageJournal:
        return PageJournal(self, self.num_pages, self.page_size)

    def recover(self) -> tuple[PageJournal, RadixTree, set[int]]:
        journal = self.journal()
        tree = RadixTree(self.page_size, journal.stamps)
        pages = journal.recover(tree)
        tree.check()
        assert journal.sealed_pages() == sorted(pages)
        return journal, tree, pages


def tokens(*ids: int) -> bytes:
    return pack_int32(ids)


def seal_some(journal: PageJournal) -> None:
    """Pages 3 → 1 → 4, and 0 behind 1 too; 6 has another salt."""
    journal.seal(3, None, tokens(10, 11), b"", 7, 1)
    journal.seal(1, 3, tokens(12, 13), b"", 7, 2)
    journal.seal(4, 1, tokens(14, 15), b"", 7, 3)
    journal.seal(0, 1, tokens(16, 17), b"", 8, 4)
    journal.seal(6, None, tokens(10, 11), salt_of("mine"), 9, 5)


def pages_of(tree: RadixTree, salt: bytes, key: bytes) -> list[int]:
    return [page for node, num in tree.match(tree.root, salt, key) for page in node.pages[:num]]


def test_a_successor_finds_what_was_sealed_with_its_salts_and_its_requests():
    memory = Pages()
    seal_some(memory.journal())
    journal, tree, pages = memory.recover()
    assert pages == {0, 1, 3, 4, 6}
    assert (journal.num_recovered, journal.num_dropped) == (5, 0)
    assert pages_of(tree, b"", tokens(10, 11, 12, 13, 14, 15)) == [3, 1, 4]
    assert pages_of(tree, b"", tokens(10, 11, 12, 13, 16, 17)) == [3, 1, 0]
    assert pages_of(tree, salt_of("mine"), tokens(10, 11, 12, 13)) == [6]
    assert {node.uid for node in tree.nodes()} == {7, 8, 9}
    assert tree.num_nodes == 4, "pages of one request are one node as far as there is one way to go"


def test_of_pages_that_hold_the_same_one_is_kept_and_leads_on():
    memory = Pages()
    journal = memory.journal()
    journal.seal(0, None, tokens(1, 2), b"", 7, 1)
    journal.seal(5, None, tokens(1, 2), b"", 8, 2)
    journal.seal(2, 5, tokens(3, 4), b"", 8, 3)
    journal.on_freed([5])
    journal.seal(6, None, tokens(1, 2), b"", 9, 4)
    journal, tree, pages = memory.recover()
    assert len(pages) == 2
    assert pages_of(tree, b"", tokens(1, 2, 3, 4))[-1] == 2
    assert journal.num_dropped == 0


def test_a_page_without_its_beginning_is_dropped():
    memory = Pages()
    seal_some(memory.journal())
    memory.journal().on_freed([3])
    journal, _, pages = memory.recover()
    assert pages == {6}
    assert journal.num_dropped == 3


def test_damaged_k_and_v_are_noticed_and_all_behind_them():
    memory = Pages()
    seal_some(memory.journal())
    memory.damage(1)
    journal, _, pages = memory.recover()
    assert pages == {3, 6}
    assert journal.num_dropped == 3


def test_damage_on_purpose_is_of_sealed_pages_alone():
    memory = Pages()
    journal = memory.journal()
    seal_some(journal)
    journal.damage(2)
    assert memory.recover()[0].num_dropped > 0
    assert memory.slots[2 * memory.page_size] is None
    assert memory.slots[5 * memory.page_size] is None
    memory.journal().damage(99)
    assert memory.recover()[2] == set()


class TornNotes:
    """What a journal writes, byte by byte in order: as a kill may cut it off."""

    def __init__(self, before: bytes, after: bytes, num_seal_bytes: int):
        self._before = before
        changed = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        self.order = sorted(changed, key=lambda index: index < num_seal_bytes)
        self._after = after

    def cut(self, num_bytes: int) -> bytearray:
        torn = bytearray(self._before)
        for index in self.order[:num_bytes]:
            torn[index] = self._after[index]
        return torn


@pytest.mark.parametrize("is_used_before", [False, True])
def test_a_record_that_is_cut_off_at_any_byte_is_not_used(is_used_before: bool):
    memory = Pages(num_pages=2)
    journal = memory.journal()
    journal.seal(0, None, tokens(1, 2), b"", 7, 1)
    if is_used_before:
        journal.seal(1, None, tokens(8, 9), salt_of("x"), 9, 9)
        journal.on_freed([1])
    before = bytes(memory.notes)
    journal.seal(1, 0, tokens(3, 4), b"", 7, 2)
    torn = TornNotes(before, bytes(memory.notes), 8 * memory.num_pages)
    assert len(torn.order) > 40
    for num_bytes in range(len(torn.order)):
        memory.notes[:] = torn.cut(num_bytes)
        assert memory.recover()[2] == {0}, f"cut off after {num_bytes} bytes"
    memory.notes[:] = torn.cut(len(torn.order))
    assert memory.recover()[2] == {0, 1}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_other_byte_in_a_record_is_noticed(data: st.DataObject):
    memory = Pages()
    seal_some(memory.journal())
    num_stamp_bytes, page_bytes = 8 * memory.num_pages, len(memory.notes) // memory.num_pages - 16
    page = data.draw(st.sampled_from([0, 1, 3, 4, 6]))
    place = data.draw(st.integers(-8, page_bytes - 1))
    at = 8 * page + 8 + place if place < 0 else 2 * num_stamp_bytes + page_bytes * page + place
    memory.notes[at] ^= data.draw(st.integers(1, 255))
    lost = {0: {0}, 1: {0, 1, 4}, 3: {0, 1, 3, 4}, 4: {4}, 6: {6}}[page]
    assert memory.recover()[2] == {0, 1, 3, 4, 6} - lost


def test_what_was_used_last_is_evicted_last_also_by_a_successor():
    chance = random.Random(3)
    memory = Pages(num_pages=60)
    journal = memory.journal()
    tree = RadixTree(memory.page_size, journal.stamps)
    free = list(range(60))

    def insert(ids: Sequence[int]) -> Node:
        key = pack_int32(ids)
        _, found = tree.find(tree.root, b"", key)
        pages = found + [free.pop() for _ in range(len(ids) // 2 - len(found))]
        for index in range(len(found), len(pages)):
            own = key[index * 8 : (index + 1) * 8]
            journal.seal(pages[index], pages[index - 1] if index else None, own, b"", 7, tree.clock)
        return tree.insert(tree.root, b"", key, pages, 7)[0]

    nodes: list[Node] = []
    for _ in range(12):
        nodes.append(insert([chance.randrange(2) for _ in range(2 * chance.randrange(1, 6))]))
    for node in chance.sample(nodes, 8):
        if node.pages:
            tree.touch(node)
    evicted = tree.evict(3)
    journal.on_freed(evicted)
    tree.touch(chance.choice(list(tree.nodes())))
    successor = memory.recover()[1]
    assert tree.num_pages > 12
    assert successor.evict(60) == tree.evict(60)


def make_pages(num_pages: int, page_size: int, attached: Attached) -> SimulatedPages:
    return SimulatedPages(num_pages, page_size, attached.get("windows", (0, 0))[1], attached.get("states", (0, 0))[0])


def run_with_deaths(
    seed: int, drafter: SimulatedDrafter | None = None, attached: Attached = NOTHING
) -> tuple[float, float, float]:
    """Serves requests by schedulers that die at any time; returns tokens resumed and recomputed, and pages dropped.

    Some die before they receive the result of a step, or within a step, and some leave damage.
    """
    chance = random.Random(seed)
    pages = make_pages(NUM_PAGES, PAGE_SIZE, attached)
    prefix = [chance.randrange(VOCAB_SIZE) for _ in range(20)]
    prompts = {uid: prefix[: chance.choice((0, 9, 20))] + [uid] * chance.randrange(1, 9) for uid in range(1, 7)}
    salts = {uid: chance.choice(("", "mine")) for uid in prompts}
    known: dict[int, list[int]] = {uid: [] for uid in prompts}
    totals = {"resumed_tokens": 0.0, "recomputed_tokens": 0.0, "pages_dropped": 0.0}
    attempt, is_over = 0, False
    while not is_over:
        bench = Bench(
            NUM_PAGES, PAGE_SIZE, MAX_MODEL_LEN, eos_token_id=NO_EOS, drafter=drafter, pages=pages, **attached
        )
        bench.scheduler.check()
        for uid, prompt in prompts.items():
            bench.send(user_msg(uid, prompt, 40, attempt, known[uid], cache_salt=salts[uid], ignore_eos=True))
        for _ in range(chance.randrange(30)):
            is_over = not bench.step()
        batch = bench.scheduler.schedule()
        if batch is not None and chance.random() < 0.7:
            bench.runner.run(batch)
        elif batch is not None and "states" in attached:
            bench.runner.spoil(batch)
        for uid in prompts:
            known[uid] = known[uid] + bench.inbox.tokens.get((uid, attempt), [])
        for name in totals:
            totals[name] += bench.gauge(name)
        journal = bench.cache.find_observer(PageJournal)
        if chance.random() < 0.2 and journal is not None:
            journal.damage(1)
            if pages.state_slots:
                pages.state_slots[chance.choice(list(pages.state_slots))] = (3, 3)
        attempt += 1
    for uid, prompt in prompts.items():
        params = user_msg(uid, prompt, 40, ignore_eos=True).sampling_params
        assert known[uid] == expected_output(prompt, params, VOCAB_SIZE, MAX_MODEL_LEN, (NO_EOS,))
    return totals["resumed_tokens"], totals["recomputed_tokens"], totals["pages_dropped"]


@pytest.mark.parametrize(
    "attached", [{}, {"windows": (9, 24)}, {"windows": (4, 12)}, {"states": (40, 3)}, {"states": (16, 50)}]
)
def test_requests_continue_where_a_dead_scheduler_left_them(attached):
    results = [run_with_deaths(seed, attached=attached) for seed in range(12)]
    resumed, recomputed, dropped = map(sum, zip(*results, strict=True))
    assert resumed > 5_000
    assert dropped > 0
    assert recomputed < (0.4 if attached else 0.25) * resumed, "of short requests, some with damage"


@pytest.mark.parametrize("attached", [{}, {"states": (40, 3)}])
def test_rows_with_draft_tokens_continue_too(attached):
    chance = random.Random(8)
    resumed, recomputed, _ = run_with_deaths(8, SimulatedDrafter(chance, VOCAB_SIZE, 4, 0.3), attached)
    assert recomputed < 0.5 * resumed


@pytest.mark.parametrize("attached", [{}, {"windows": (100, 41)}, {"states": (4, 1000)}])
def test_all_but_the_last_page_of_a_long_request_is_taken_over(attached):
    pages = make_pages(600, 16, attached)
    first = Bench(600, 16, 8192, max_num_batched_tokens=512, eos_token_id=NO_EOS, pages=pages, **attached)
    prompt = [index % 47 for index in range(8000)]
    first.send(user_msg(1, prompt, 100, ignore_eos=True))
    while len(first.output(1)) < 40:
        first.step()
    second = Bench(600, 16, 8192, max_num_batched_tokens=512, eos_token_id=NO_EOS, pages=pages, **attached)
    second.send(user_msg(1, prompt, 100, 1, first.output(1), ignore_eos=True))
    assert second.step() == {1: 40 - 32}, "one step, of what is in no full page"
    assert second.gauge("pages_recovered") == (8000 + 39) // 16
    assert (second.gauge("resumed_tokens"), second.gauge("recomputed_tokens")) == (8040, 8)
