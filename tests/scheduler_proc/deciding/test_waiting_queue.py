"""The order of requests: priorities and waiting time, without starvation or livelock."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.ring.requests import AbortMsg, Stamps, UserMsg
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.waiting_queue import AGING_S, MAX_LEAD_S, WaitingQueue, priority_key_of
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg

LIMITS = Limits(64, VOCAB_SIZE, ())


def came_at(message: UserMsg, seconds: float) -> UserMsg:
    """Returns the request as one that the frontend received at that time."""
    return msgspec.structs.replace(message, stamps=Stamps(received_ns=int(seconds * 1e9)))


def priority_key(seconds: float, priority: int, number: int = 0) -> tuple[int, int]:
    return priority_key_of(Stamps(received_ns=int(seconds * 1e9)), priority, 0, number)


def first_served(bench: Bench) -> list[int]:
    """Returns the requests in the order of their first rows."""
    seen: list[int] = []
    while rows := bench.step():
        seen += [uid for uid in rows if uid not in seen]
    bench.check_idle()
    return seen


def test_equal_priorities_are_served_in_the_order_in_which_they_came():
    assert priority_key(1, 0) < priority_key(2, 0)
    assert priority_key(1, 0, 4) < priority_key(1, 0, 5)


def test_a_lower_number_goes_first_and_waiting_makes_up_for_it():
    assert priority_key(5, -1) < priority_key(1, 0) < priority_key(1, 2)
    assert priority_key(1, 1) > priority_key(1 + AGING_S - 0.1, 0)
    assert priority_key(1, 1) < priority_key(1 + AGING_S + 0.1, 0)
    assert priority_key(1, 3) < priority_key(1 + 3 * AGING_S + 0.1, 0)


@pytest.mark.parametrize("priority", [101, 10**6, 2**63 - 1])
def test_no_priority_makes_anybody_wait_for_ever(priority):
    assert priority_key(1, priority) == priority_key(1, MAX_LEAD_S // AGING_S)
    assert priority_key(1, priority) < priority_key(1 + 2 * MAX_LEAD_S + 0.1, -priority)


def test_a_request_without_a_stamp_came_when_it_was_queued():
    assert priority_key_of(Stamps(), 0, 7, 1) == (7, 1)


def test_the_queue_is_served_by_priority():
    bench = Bench(num_pages=64, max_num_seqs=1)
    for uid, priority in ((1, 0), (2, 5), (3, -2), (4, 0), (5, -2)):
        bench.send(user_msg(uid, [uid] * 5, max_tokens=2, ignore_eos=True, priority=priority))
    assert first_served(bench) == [3, 5, 1, 4, 2]


def test_who_has_waited_long_goes_before_a_better_priority():
    bench = Bench(num_pages=64, max_num_seqs=1)
    bench.send(came_at(user_msg(1, [1] * 5, max_tokens=2, priority=2), 100))
    bench.send(came_at(user_msg(2, [2] * 5, max_tokens=2), 100 + 2 * AGING_S + 1))
    bench.send(came_at(user_msg(3, [3] * 5, max_tokens=2), 100 + 2 * AGING_S - 1))
    assert first_served(bench) == [3, 1, 2]


def test_a_prompt_with_priority_goes_before_one_that_is_half_done():
    bench = Bench(num_pages=64, max_num_batched_tokens=16)
    bench.send(user_msg(1, [1] * 50, max_tokens=2), user_msg(2, [2] * 50, max_tokens=2, priority=-1))
    assert bench.step() == {2: 16}
    bench.send(AbortMsg(2, 0))
    assert bench.step() == {1: 16}
    bench.send(user_msg(3, [3] * 20, max_tokens=9, ignore_eos=True, priority=-1))
    assert bench.step() == {1: 16}, "rows are not taken from those that run"
    assert bench.step() == {1: 16}
    assert bench.step() == {1: 2, 3: 14}
    bench.run()


def preemptions_in_order(bench: Bench) -> list[int]:
    """Runs to the end; returns who gave way, in order."""
    victims: list[int] = []
    before: set[int] = set()
    while rows := bench.step():
        victims += sorted(before - set(rows) - {uid for uid, _ in bench.inbox.finished})
        before = set(rows)
    bench.check_idle()
    return victims


def test_the_largest_priority_number_gives_way_and_of_equals_the_youngest():
    bench = Bench(num_pages=16, page_size=4, max_model_len=64, max_num_batched_tokens=64)
    for uid, priority in ((1, 1), (2, 0), (3, 0)):
        bench.send(user_msg(uid, [uid] * 8, max_tokens=40, ignore_eos=True, priority=priority))
    assert preemptions_in_order(bench)[:2] == [1, 3]
    assert [uid for uid, _ in bench.inbox.finished] == [2, 3, 1]


def test_who_gave_way_comes_after_those_before_it():
    bench = Bench(num_pages=16, page_size=4, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64)
    bench.send(user_msg(1, [1] * 20, max_tokens=30, ignore_eos=True))
    bench.send(user_msg(2, [2] * 20, max_tokens=30, ignore_eos=True, priority=5))
    bench.step()
    bench.send(user_msg(3, [3] * 40, max_tokens=2, ignore_eos=True, priority=1))
    while not bench.gauge("preemptions"):
        bench.step()
    while set(rows := bench.step()) == {1}:
        pass
    assert 3 in rows
    assert 2 not in rows
    bench.run()


@given(st.lists(st.tuples(st.integers(-120, 120), st.floats(0, 3_000)), min_size=1, max_size=30), st.randoms())
def test_the_queue_is_always_in_order(asks, chance):
    queue = WaitingQueue()
    pendings: list[PendingReq] = []
    for number, (priority, seconds) in enumerate(asks):
        pending = PendingReq(came_at(user_msg(number, [1], priority=priority), seconds), LIMITS, 1)
        pending.priority_key = priority_key_of(pending.stamps, priority, 1, number)
        queue.push(pending)
        pendings.append(pending)
        queue.check()
    while len(queue):
        assert queue.first is min(pendings, key=lambda pending: pending.priority_key)
        pending = chance.choice(pendings)
        queue.remove(pending)
        pendings.remove(pending)
        assert list(queue) == sorted(pendings, key=lambda pending: pending.priority_key)


ASKS = st.tuples(
    st.integers(1, 50),  # prompt
    st.integers(1, 14),  # max_tokens
    st.integers(-3, 3),  # priority
    st.floats(0, 60),  # seconds
    st.integers(0, 12),  # steps before it
    st.sampled_from([None, 0, 2]),  # num_prompt_logprobs
)


@given(asks=st.lists(ASKS, min_size=2, max_size=25), num_spare=st.integers(0, 6), is_sharing=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_first_in_priority_continues_in_every_step_until_it_ends(asks, num_spare, is_sharing):
    bench = Bench(num_pages=16 + num_spare, page_size=4, max_num_batched_tokens=20, is_sharing=is_sharing)
    stages = bench.scheduler._stages
    num_steps = 0
    for uid, (length, max_tokens, priority, seconds, num_steps_before, num_top) in enumerate(asks):
        for _ in range(num_steps_before):
            num_steps += step_and_check_first(bench)
        prompt = [(uid * 7 + place * place) % VOCAB_SIZE for place in range(length)]
        message = user_msg(uid, prompt, max_tokens, ignore_eos=True, priority=priority, num_prompt_logprobs=num_top)
        bench.send(came_at(message, 1 + seconds))
    while stages.requests:
        num_steps += step_and_check_first(bench)
    bench.check_idle()
    # Each step moves at least the first in priority on, by a token or by a chunk of its prompt.
    assert num_steps <= sum(max_tokens + length for length, max_tokens, *_ in asks)


def step_and_check_first(bench: Bench) -> bool:
    """Runs a step; asserts that the first in priority of those that ran is still running, or has ended."""
    running = bench.scheduler._stages.running
    first = min(running.values(), key=lambda req: req.pending.priority_key, default=None)
    rows = bench.step()
    assert first is None or first.uid in rows, "the first in priority was passed over"
    return bool(rows)
