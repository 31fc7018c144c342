"""Clients share steps, rows and pages: no one waits for all requests of another, and parts follow the shares."""

import random
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.ring.requests import AbortMsg, Pooling, UserMsg
from scheduler_proc.deciding.waiting_queue import AGING_S
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.deciding.test_turns import body, check_outputs, steps_until

NEW = 100_000
"""The uid of the request of another client."""


def sent_by(client: str, messages: Iterable[UserMsg], share: int = 1) -> list[UserMsg]:
    return [msgspec.structs.replace(message, client=client, share=share) for message in messages]


def bodies(client: str, num_bodies: int, num_rows: int, length: int, max_tokens: int = 30) -> list[UserMsg]:
    """Returns several HTTP requests of one client."""
    ranges = range(1, num_bodies * num_rows + 1, num_rows)
    return sent_by(client, [each for first in ranges for each in body(num_rows, length, max_tokens, first)])


@pytest.mark.parametrize(("num_pages", "num_before", "length"), [(400, 0, 25), (400, 3, 3), (34, 1, 3), (34, 40, 25)])
@pytest.mark.parametrize(("num_bodies", "num_rows"), [(64, 1), (16, 16), (1, 64)])
def test_many_requests_of_one_client_delay_the_first_token_of_another_by_two_steps_at_most(
    num_pages: int, num_bodies: int, num_rows: int, length: int, num_before: int
):
    bench = Bench(num_pages=num_pages, max_num_seqs=8, max_num_batched_tokens=32)
    large = bodies("large", num_bodies, num_rows, length)
    (small,) = sent_by("small", [user_msg(NEW, [5, 6, 8] * 4, 4, ignore_eos=True)])
    bench.send(*large)
    for _ in range(num_before):
        bench.step()
    bench.send(small)
    assert steps_until(bench, NEW) <= 2
    num_preemptions = bench.gauge("preemptions")
    bench.send(*(AbortMsg(message.uid, 0) for message in large[20:]))
    check_outputs(bench, [*large[:20], small])
    assert num_pages == 34 or bench.gauge("preemptions") == num_preemptions <= 1, "rows that have left return once"


def run_closed(bench: Bench, num_steps: int, clients: dict[str, tuple[int, int]], max_tokens: int) -> Counter[str]:
    """Keeps requests of each client open; returns the tokens of each in the second half of the steps.

    `clients` are the shares and the numbers of open requests.
    """
    client_of: dict[int, str] = {}
    tokens: Counter[str] = Counter()
    chance = random.Random(5)
    for number in range(num_steps):
        num_open = Counter(client_of.values())
        num_open.subtract(client_of[uid] for uid, _ in bench.inbox.finished)
        for client, (share, most) in clients.items():
            for _ in range(most - num_open[client]):
                uid = len(client_of) + 1
                client_of[uid] = client
                prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(2, 30))]
                message = user_msg(uid, prompt, chance.randint(1, max_tokens), ignore_eos=True)
                bench.send(*sent_by(client, [message], share))
        for uid, num_tokens in bench.step().items():
            tokens[client_of[uid]] += num_tokens if number >= num_steps // 2 else 0
    return tokens


@pytest.mark.parametrize(("max_tokens", "num_seqs"), [(2, 16), (30, 8)])
def test_tokens_of_steps_follow_the_shares(max_tokens: int, num_seqs: int):
    bench = Bench(num_pages=300, max_num_seqs=num_seqs, max_num_batched_tokens=32)
    tokens = run_closed(bench, 300, {"one": (1, 40), "three": (3, 20)}, max_tokens)
    assert 2.5 < tokens["three"] / tokens["one"] < 3.5
    assert bench.gauge("preemptions") < 10


def test_what_a_client_leaves_belongs_to_the_others():
    bench = Bench(num_pages=300, max_num_seqs=8, max_num_batched_tokens=32)
    tokens = run_closed(bench, 300, {"many": (1, 30), "few": (3, 1), "some": (1, 30)}, 20)
    assert 0.8 < tokens["many"] / tokens["some"] < 1.25
    alone = run_closed(Bench(num_pages=300, max_num_seqs=8, max_num_batched_tokens=32), 300, {"many": (1, 61)}, 20)
    assert tokens.total() > 0.95 * alone.total()


@given(
    asks=st.lists(
        st.tuples(
            st.integers(0, 3),  # client
            st.integers(1, 40),  # prompt
            st.integers(1, 12),  # max_tokens
            st.integers(1, 12),  # choices
            st.sampled_from([0, 0, 0, -1, 2]),  # priority
            st.integers(0, 6),  # steps before it
        ),
        min_size=2,
        max_size=20,
    ),
    num_pages=st.integers(16, 60),
    num_seqs=st.integers(1, 8),
    is_sharing=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_no_client_starves_and_no_token_changes(
    asks: list[tuple[int, int, int, int, int, int]], num_pages: int, num_seqs: int, is_sharing: bool
):
    bench = Bench(num_pages=num_pages, max_num_seqs=num_seqs, max_num_batched_tokens=20, is_sharing=is_sharing)
    sent: list[UserMsg] = []
    for client, length, max_tokens, num_rows, priority, num_before in asks:
        for _ in range(num_before):
            bench.step()
        rows = body(num_rows, length, max_tokens, len(sent) + 1, priority=priority)
        sent += sent_by(f"client {client}", rows, share=client + 1)
        bench.send(*sent[-num_rows:])
    check_outputs(bench, sent)


@pytest.mark.parametrize("seed", range(3))
def test_each_client_has_its_first_token_within_a_round(seed: int):
    bench = Bench(num_pages=80, max_num_seqs=8, max_num_batched_tokens=32)
    chance = random.Random(seed)
    uid, waiting, client_of, most = 1, dict[str, int](), dict[int, str](), 0
    for _ in range(400):
        client = f"client {chance.choice([0, 0, 0, 0, 1, 2, 3])}"
        if bench.gauge("waiting") < 60:
            rows = body(chance.choice([1, 1, 8]), chance.randint(2, 30), chance.randint(1, 20), uid)
            bench.send(*sent_by(client, rows))
            client_of.update((row.uid, client) for row in rows)
            uid += len(rows)
        served = {client_of[uid] for uid in bench.step()}
        open_clients = {pending.client for pending in bench.scheduler._stages.requests.values()}
        waiting = {each: waiting.get(each, 0) + 1 for each in open_clients - served}
        most = max(most, *waiting.values(), 0)
    assert most <= 3, "a client with requests had no token for several steps"
    bench.run()


def test_of_two_clients_the_one_with_the_better_priority_comes_first():
    bench = Bench(num_pages=400, max_num_batched_tokens=16)
    bench.send(*sent_by("one", [user_msg(1, [1] * 40, 1), user_msg(2, [2] * 4, 1)]))
    bench.send(*sent_by("other", [user_msg(3, [3] * 40, 1, priority=-1)]))
    assert [bench.step() for _ in range(2)] == [{3: 16}, {3: 16}]
    assert bench.step() == {3: 8, 1: 8}
    bench.run()


def test_prompts_that_need_a_whole_step_are_computed_in_turn():
    bench = Bench(num_pages=400, max_num_seqs=8, max_num_batched_tokens=32)
    for uid in range(1, 11):
        pooled = user_msg(uid, [uid] * 30, 0, pooling=Pooling("embed", is_whole=True))
        bench.send(*sent_by("pooled", [pooled]), *sent_by("text", [user_msg(uid + 20, [uid] * 25, 5, ignore_eos=True)]))
    steps = [bench.step() for _ in range(6)]
    assert sum(any(uid <= 10 for uid in step) for step in steps) >= 2
    bench.run()


def test_a_request_that_needs_most_pages_is_not_passed_for_ever(monkeypatch: pytest.MonkeyPatch):
    now_ns = [1_000_000_000]
    monkeypatch.setattr("scheduler_proc.deciding.plan_notes.time.monotonic_ns", lambda: now_ns[0])
    bench = Bench(num_pages=20, max_num_seqs=8, max_num_batched_tokens=32, is_sharing=False)
    uid = 1
    while not bench.inbox.tokens.get((NEW, 0)):
        while bench.gauge("waiting") < 6:
            clients = sent_by(f"client {uid % 2}", [user_msg(uid, [uid % VOCAB_SIZE] * 8, 8, ignore_eos=True)])
            bench.send(*clients)
            uid += 1
        bench.step()
        now_ns[0] += 1_000_000_000
        if uid > 20 and (NEW, 0) not in bench.inbox.opened:
            bench.send(*sent_by("large", [user_msg(NEW, [3] * 56, 2, ignore_eos=True)]))
        assert now_ns[0] < (60 + 4 * AGING_S) * 1_000_000_000, "it is passed for ever"
    bench.run()
