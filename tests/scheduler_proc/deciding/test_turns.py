"""Turns between HTTP requests: one request of another client is never behind all rows of a large one."""

from typing import Any

import msgspec
import pytest

from messages.ring.requests import AbortMsg, UserMsg
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_output

NEW = 1_000
"""The uid of the request of another client."""


def body(num_rows: int, length: int, max_tokens: int = 1, first: int = 1, **params: Any) -> list[UserMsg]:
    """Returns the requests of one HTTP request, each with a prompt of its own."""
    prompts = [[(uid * 11 + place * place) % VOCAB_SIZE for place in range(length)] for uid in range(num_rows)]
    params = {"ignore_eos": True, **params}
    return [
        msgspec.structs.replace(user_msg(first + uid, prompt, max_tokens, **params), group=first)
        for uid, prompt in enumerate(prompts)
    ]


def steps_until(bench: Bench, uid: int, most: int = 50) -> int:
    """Returns the number of steps until a request has its first token."""
    for count in range(1, most):
        bench.step()
        if bench.inbox.tokens[uid, 0]:
            return count
    raise AssertionError(f"{uid} has no token after {most} steps")


def check_outputs(bench: Bench, messages: list[UserMsg]) -> None:
    bench.run()
    for message in messages:
        prompt = list(memoryview(message.input_ids).cast("i"))
        expected = expected_output(prompt, message.sampling_params, VOCAB_SIZE, bench.limits.max_model_len, (7,))
        assert bench.output(message.uid) == expected


@pytest.mark.parametrize(("num_rows", "length"), [(100, 3), (60, 30), (20, 60)])
def test_a_small_request_is_in_the_next_step_next_to_many_prompts(num_rows: int, length: int):
    bench = Bench(num_pages=200, max_num_seqs=8, max_num_batched_tokens=32)
    large, small = body(num_rows, length), user_msg(NEW, [5, 6, 8], 4, ignore_eos=True)
    bench.send(*large)
    for _ in range(3):
        bench.step()
    bench.send(small)
    assert steps_until(bench, NEW) <= 2
    check_outputs(bench, [*large, small])


def test_a_small_request_gets_a_row_of_one_that_has_all():
    bench = Bench(num_pages=400, max_num_seqs=8)
    large, small = body(20, 6, max_tokens=50), user_msg(NEW, [5, 6, 8], 4, ignore_eos=True)
    bench.send(*large)
    for _ in range(6):
        bench.step()
    assert bench.gauge("decoding") == 8
    bench.send(small)
    assert steps_until(bench, NEW) == 1
    assert bench.gauge("preemptions") == 1
    check_outputs(bench, [*large, small])
    assert bench.gauge("preemptions") == 1, "the row that has left is not preempted again"


def test_a_small_request_gets_pages_of_one_that_has_all():
    bench = Bench(num_pages=40, max_num_seqs=32, max_num_batched_tokens=64)
    large, small = body(20, 8, max_tokens=50), user_msg(NEW, [5, 6, 8, 9, 10, 11, 12, 13], 4, ignore_eos=True)
    bench.send(*large)
    for _ in range(6):
        bench.step()
    assert bench.gauge("waiting") > 0
    bench.send(small)
    assert steps_until(bench, NEW) <= 2
    check_outputs(bench, [*large, small])


def test_a_short_prompt_passes_a_long_one_and_equal_ones_are_in_order_of_arrival():
    bench = Bench(num_pages=400, max_model_len=200, max_num_batched_tokens=16)
    bench.send(user_msg(1, [1] * 150, 1), user_msg(2, [2] * 150, 1))
    assert bench.step() == {1: 16}
    bench.send(user_msg(3, [3] * 6, 1))
    assert bench.step() == {3: 6, 1: 10}
    assert bench.step() == {1: 16}
    bench.send(user_msg(4, [4] * 6, 1, priority=1))
    assert bench.step() == {1: 16}, "a worse priority does not pass"
    bench.run()
    assert [uid for uid, _ in bench.inbox.finished] == [3, 1, 2, 4]


def test_short_prompts_without_end_leave_a_long_one_half_of_each_step():
    bench = Bench(num_pages=400, max_model_len=200, max_num_batched_tokens=16)
    bench.send(user_msg(1, [1] * 160, 1, ignore_eos=True))
    bench.step()
    for uid in range(2, 200):
        bench.send(user_msg(uid, [uid % VOCAB_SIZE] * 8, 1, ignore_eos=True))
        bench.step()
        if bench.inbox.tokens[1, 0]:
            break
    assert uid <= 20
    bench.run()


def test_two_large_requests_take_turns_row_by_row():
    bench = Bench(num_pages=400, max_num_seqs=8, max_num_batched_tokens=32)
    first, second = body(30, 30), body(30, 30, first=500)
    bench.send(*first)
    bench.step()
    bench.send(*second)
    for _ in range(20):
        bench.step()
    ended = [uid >= 500 for uid, _ in bench.inbox.finished]
    assert abs(sum(ended) - len(ended) / 2) <= 1.5
    check_outputs(bench, [*first, *second])


def test_a_large_request_ends_next_to_small_ones_without_end():
    bench = Bench(num_pages=400, max_num_seqs=8, max_num_batched_tokens=32)
    large = body(20, 30)
    bench.send(*large)
    uid = NEW
    while any((each.uid, 0) not in bench.inbox.finished for each in large):
        uid += 1
        bench.send(*[user_msg(uid * 2 + one, [uid % VOCAB_SIZE] * 16, 1, ignore_eos=True) for one in range(2)])
        bench.step()
        assert uid < NEW + 20 * 6, "the large request does not end"
    bench.run()


def test_alone_a_large_request_takes_no_more_steps_than_requests_of_many_clients():
    num_steps: list[int] = []
    for is_one in (True, False):
        bench = Bench(num_pages=400, max_num_seqs=8, max_num_batched_tokens=32)
        rows = body(40, 20, max_tokens=6)
        bench.send(*(rows if is_one else [msgspec.structs.replace(row, group=0) for row in rows]))
        count = 0
        while bench.step():
            count += 1
        num_steps.append(count)
        assert bench.gauge("preemptions") == 0
    assert num_steps[0] == num_steps[1]


def test_a_request_that_waits_behind_its_group_can_be_aborted():
    bench = Bench(num_pages=200, max_num_seqs=2, max_num_batched_tokens=16)
    large = body(9, 10, max_tokens=3)
    bench.send(*large, AbortMsg(5, 0), AbortMsg(1, 0), AbortMsg(9, 0))
    bench.run()
    reasons = [bench.inbox.finished[each.uid, 0].finish_reason for each in large]
    assert reasons == ["abort", *["length"] * 3, "abort", *["length"] * 3, "abort"]
