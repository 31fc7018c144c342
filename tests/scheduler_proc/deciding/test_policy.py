"""Which requests run, wait, are paused and are preempted."""

import random
import time
from typing import Any

import msgspec
import pytest

from messages.columns import unpack_int32, unpack_int64
from messages.ring.requests import YIELDING_PRIORITY, AbortMsg, Stamps, UserMsg
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.overlapped import OverlappedBench
from tests.scheduler_proc.simulated_runner import expected_output


def prompt(length: int, first: int = 0) -> list[int]:
    """Returns a prompt that shares no page with one of another `first`."""
    return [(first * 13 + position * position) % VOCAB_SIZE for position in range(length)]


def test_decode_rows_never_wait_for_a_long_prompt():
    bench = Bench(max_model_len=128, num_pages=64, max_num_batched_tokens=16)
    bench.send(*(user_msg(uid, prompt(4, uid), max_tokens=30, ignore_eos=True) for uid in range(3)))
    bench.step()
    bench.send(user_msg(9, prompt(100, 9), max_tokens=2, ignore_eos=True))
    num_steps_of_prompt = 0
    while not bench.inbox.tokens[9, 0]:
        rows = bench.step()
        assert [rows[uid] for uid in range(3)] == [1, 1, 1]
        assert rows[9] <= 13
        num_steps_of_prompt += 1
    assert num_steps_of_prompt == -(-100 // 13)


def test_decode_rows_come_first_and_chunks_fill_the_budget():
    bench = Bench(max_num_batched_tokens=16)
    bench.send(user_msg(1, prompt(5, 1), max_tokens=9, ignore_eos=True))
    assert bench.step() == {1: 5}
    bench.send(user_msg(2, prompt(20, 2)), user_msg(3, prompt(4, 3)))
    assert bench.step() == {1: 1, 2: 15}
    assert bench.step() == {1: 1, 2: 5, 3: 4}
    assert [batch.phase for batch in bench.runner.batches] == ["prefill", "mixed", "mixed"]
    bench.step()
    assert bench.runner.batches[-1].phase == "decode"


def test_the_queue_is_served_first_come_first_served():
    bench = Bench(num_pages=64, max_num_seqs=2)
    bench.send(*(user_msg(uid, prompt(6, uid), max_tokens=3, ignore_eos=True) for uid in (5, 3, 8, 1)))
    first_seen: list[int] = []
    while rows := bench.step():
        assert len(rows) <= 2
        first_seen += [uid for uid in rows if uid not in first_seen]
    assert first_seen == [5, 3, 8, 1]


def test_a_request_that_does_not_fit_is_not_overtaken():
    bench = Bench(num_pages=16, max_model_len=64, max_num_batched_tokens=64)
    bench.send(user_msg(1, prompt(30, 1), max_tokens=8, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, prompt(40, 2), max_tokens=2), user_msg(3, prompt(4, 3), max_tokens=2))
    while not bench.inbox.finished:
        assert set(bench.step()) == {1}
    assert set(bench.step()) == {2, 3}


def test_the_youngest_gives_way_and_continues_later():
    bench = Bench(num_pages=16, page_size=4, max_model_len=64, max_num_batched_tokens=64)
    bench.send(*(user_msg(uid, prompt(8, uid), max_tokens=40, ignore_eos=True) for uid in (1, 2, 3)))
    preempted: list[set[int]] = []
    before: set[int] = set()
    while rows := bench.step():
        if before - set(rows) - {uid for uid, _ in bench.inbox.finished}:
            preempted.append(before - set(rows))
        before = set(rows)
    assert preempted[:2] == [{3}, {2}]
    assert [uid for uid, _ in bench.inbox.finished] == [1, 2, 3]
    for uid in (1, 2, 3):
        params = user_msg(uid, prompt(8, uid), max_tokens=40, ignore_eos=True).sampling_params
        assert bench.output(uid) == expected_output(prompt(8, uid), params, VOCAB_SIZE, 64)
        assert bench.end(uid).usage.completion_tokens == 40
        assert bench.end(uid).usage.cached_tokens == 0, "what a preempted request finds of its own is no hit"


def test_who_gave_way_comes_before_those_who_wait():
    bench = Bench(num_pages=16, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64)
    bench.send(*(user_msg(uid, prompt(20, uid), max_tokens=30, ignore_eos=True) for uid in (1, 2)))
    bench.send(*(user_msg(uid, prompt(4, uid), max_tokens=2, ignore_eos=True) for uid in (3, 4)))
    while not bench.gauge("preemptions"):
        bench.step()
    preempted_ns = time.monotonic_ns()
    assert set(bench.step()) == {1}, "who waits longer is not overtaken, however little it takes"
    while set(rows := bench.step()) == {1}:
        pass
    assert 2 in rows
    bench.run()
    assert bench.end(2).stamps.first_token_ns < preempted_ns, "the first token is the first that was ever sent"
    assert preempted_ns < bench.end(3).stamps.first_scheduled_ns <= bench.end(4).stamps.first_scheduled_ns


def test_a_preempted_request_finds_its_own_pages_again():
    bench = Bench(num_pages=16, max_model_len=64, max_num_batched_tokens=64)
    bench.send(user_msg(1, prompt(24, 1), max_tokens=20, ignore_eos=True))
    bench.send(user_msg(2, prompt(20, 2), max_tokens=20, ignore_eos=True))
    while not bench.gauge("preemptions"):
        bench.step()
    bench.send(AbortMsg(1, 0))
    assert bench.step()[2] < 8, "its first pages were computed again"
    bench.run()
    params = user_msg(2, [], max_tokens=20, ignore_eos=True).sampling_params
    assert bench.output(2) == expected_output(prompt(20, 2), params, VOCAB_SIZE, 64)


def test_two_large_requests_do_not_preempt_each_other_for_ever():
    bench = Bench(num_pages=16, max_model_len=64, max_num_batched_tokens=16)
    bench.send(*(user_msg(uid, prompt(30, uid), max_tokens=34, ignore_eos=True) for uid in (1, 2)))
    bench.run(max_steps=200)
    assert bench.gauge("preemptions") <= 1


@pytest.mark.parametrize("is_sharing", [True, False])
def test_a_small_cache_does_not_thrash(is_sharing):
    bench = Bench(num_pages=24, max_model_len=64, max_num_seqs=16, max_num_batched_tokens=64, is_sharing=is_sharing)
    bench.send(*(user_msg(uid, prompt(8, uid), max_tokens=32, ignore_eos=True) for uid in range(40)))
    bench.run(max_steps=2_000)
    num_computed = sum(len(batch.token_ids) // 4 for batch in bench.runner.batches)
    assert num_computed < 1.5 * 40 * (8 + 32), "too much was computed twice"
    assert bench.gauge("preemptions") < 2 * 40


def test_a_new_row_is_not_preempted_in_the_step_that_admits_it():
    chance = random.Random(5)
    bench = Bench(num_pages=16, max_model_len=64, max_num_seqs=16, max_num_batched_tokens=24)
    for uid in range(60):
        bench.send(user_msg(uid, prompt(chance.randrange(1, 40), uid), max_tokens=chance.randrange(1, 24)))
    was_waiting, num_preempted = bench.gauge("waiting"), 0.0
    while bench.step():
        is_preempting = bench.gauge("preemptions") > num_preempted
        assert not is_preempting or bench.gauge("waiting") >= was_waiting, "admitted and preempted in one step"
        was_waiting, num_preempted = bench.gauge("waiting"), bench.gauge("preemptions")
    assert num_preempted


def test_requests_of_one_step_do_not_compute_a_shared_beginning_twice():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    shared = prompt(24)
    bench.send(user_msg(1, [*shared, 1, 2]), user_msg(2, [*shared, 3]), user_msg(3, prompt(10, 3)))
    assert bench.step() == {1: 26, 3: 10}, "the second waits for the first, the third does not"
    rows = bench.step()
    assert rows[2] == 1
    bench.run()
    assert bench.end(2).usage.cached_tokens == 24
    for uid, ids in ((1, [*shared, 1, 2]), (2, [*shared, 3])):
        assert bench.output(uid) == expected_output(ids, user_msg(uid, ids).sampling_params, VOCAB_SIZE, 64, (7,))


def test_salts_do_not_wait_for_each_other():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    bench.send(*(user_msg(uid, prompt(10), cache_salt=salt) for uid, salt in enumerate(("", "a", "b"))))
    assert bench.step() == {0: 10, 1: 10, 2: 10}


def test_a_prompt_is_let_in_only_next_to_all_that_others_still_need():
    bench = Bench(num_pages=16, max_num_batched_tokens=8)
    bench.send(user_msg(1, prompt(40, 1), max_tokens=1), user_msg(2, prompt(40, 2), max_tokens=1))
    bench.step()
    bench.step()
    assert bench.gauge("running") == 1, "pages are free, but the first prompt will need them"


def test_one_that_waits_for_a_shared_page_counts_with_all_it_needs():
    bench = Bench(num_pages=16, max_num_batched_tokens=64)
    bench.send(
        user_msg(1, prompt(9, 1), max_tokens=2),
        user_msg(2, [*prompt(8, 1), *prompt(30, 2)], max_tokens=2),
        user_msg(3, prompt(24, 3), max_tokens=2),
    )
    assert bench.step() == {1: 9}
    assert bench.gauge("running") == 2
    bench.run()


def test_one_that_waits_again_for_a_shared_page_still_counts():
    bench = Bench(num_pages=20, max_num_batched_tokens=64)
    shared, more = prompt(8, 1), prompt(8, 4)
    bench.send(
        user_msg(1, [*shared, 1], max_tokens=3, ignore_eos=True),
        user_msg(2, [*shared, *more, 2], max_tokens=2),
        user_msg(3, [*shared, *more, *prompt(20, 5)], max_tokens=2),
    )
    assert bench.step() == {1: 9}
    bench.send(user_msg(4, prompt(24, 3), max_tokens=2))
    assert bench.step() == {1: 1, 2: 9}
    assert bench.gauge("running") == 3
    bench.run()


def test_a_page_for_each_running_row_to_grow_into_is_left():
    bench = Bench(num_pages=16, max_num_batched_tokens=64)
    bench.send(*(user_msg(uid, prompt(8, uid), max_tokens=30) for uid in range(8)))
    bench.step()
    assert bench.gauge("running") == 4, "four rows of 3 pages leave one to each; a fifth would take them"


def test_a_prompt_in_prefill_continues_with_what_another_has_computed():
    bench = Bench(num_pages=64, max_model_len=64, max_num_batched_tokens=10)
    shared = prompt(40)
    bench.send(user_msg(1, [*shared, 1]), user_msg(2, [*shared, 2]))
    num_tokens = {1: 0, 2: 0}
    while not bench.inbox.finished:
        for uid, count in bench.step().items():
            num_tokens[uid] += count if not bench.output(uid) or len(bench.output(uid)) == 1 else 0
    assert num_tokens[1] == 41
    assert num_tokens[2] == 1
    bench.run()


def test_pages_are_taken_as_tokens_need_them():
    bench = Bench(num_pages=40, page_size=4, max_num_batched_tokens=6)
    bench.send(user_msg(1, prompt(14, 1), max_tokens=50, ignore_eos=True))
    used = []
    for _ in range(6):
        bench.step()
        used.append(40 - bench.gauge("pages_free"))
    assert used == [2, 3, 4, 4, 4, 5]


def test_a_batch_reports_the_runner_every_pages_place():
    bench = Bench(num_pages=40, page_size=4, max_num_batched_tokens=64)
    bench.send(user_msg(1, prompt(3, 1), max_tokens=9, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, prompt(30, 2)))
    bench.step()
    batch = bench.runner.batches[-1]
    assert list(unpack_int64(batch.uids)) == [1, 2]
    assert batch.num_pages_per_row == 8
    tables = unpack_int32(batch.page_tables)
    assert sum(page >= 0 for page in tables[:8]) == 1
    assert sum(page >= 0 for page in tables[8:]) == 8
    assert list(unpack_int32(batch.sample_tokens)) == [0, 30]


def test_a_budget_smaller_than_the_rows_is_kept():
    bench = Bench(num_pages=64, max_num_seqs=8, max_num_batched_tokens=3)
    bench.send(*(user_msg(uid, prompt(5, uid), max_tokens=6) for uid in range(6)))
    while rows := bench.step():
        assert len(rows) <= 3
    assert len(bench.inbox.finished) == 6


def batch_line(uid: int, max_tokens: int = 20, length: int = 6, **params: Any) -> UserMsg:
    """A request that gives way to all others."""
    return user_msg(uid, prompt(length, uid), max_tokens, priority=YIELDING_PRIORITY, ignore_eos=True, **params)


def check_output(bench: Bench, message: UserMsg, length: int = 6) -> None:
    expected = expected_output(prompt(length, message.uid), message.sampling_params, VOCAB_SIZE, 64)
    assert bench.output(message.uid, message.attempt) == expected


@pytest.mark.parametrize("plans_decodes_alone", [False, True])
@pytest.mark.parametrize("make_bench", [Bench, OverlappedBench])
def test_rows_of_batches_pause_while_others_run_and_continue_exactly(
    make_bench: type[Bench], plans_decodes_alone: bool
):
    bench = make_bench(num_pages=64, yielding=(2, 5), plans_decodes_alone=plans_decodes_alone)
    lines = [batch_line(uid) for uid in range(1, 7)]
    bench.send(*lines)
    for _ in range(4):
        bench.step()
    live = user_msg(50, prompt(6, 50), max_tokens=30, ignore_eos=True)
    bench.send(live)
    bench.run()
    steps = [set(unpack_int64(batch.uids)) for batch in bench.runner.batches]
    steps = steps[steps.index({50}) :]
    steps = steps[: next(place for place, rows in enumerate(steps) if 50 not in rows)]
    assert len(steps) > 20
    turns = [rows - {50} for rows in steps if rows - {50}]
    assert all(50 in rows for rows in steps)
    assert turns == [{1, 2}] * len(turns), "the first in priority have the turns"
    assert len(steps) // 5 - 1 <= len(turns) <= len(steps) // 5 + 1
    for message in (live, *lines):
        check_output(bench, message)
    assert bench.gauge("preemptions") == 0, "they have kept their pages"


def test_prompts_of_batches_get_few_tokens_while_others_run():
    bench = Bench(num_pages=64, yielding=(2, 4))
    live = user_msg(50, prompt(6, 50), max_tokens=40, ignore_eos=True)
    bench.send(live)
    bench.step()
    line = batch_line(1, max_tokens=3, length=8)
    bench.send(line)
    counts = [bench.step().get(1, 0) for _ in range(20)]
    assert counts == [0, 0, 0, 2] * 4 + [0, 0, 0, 1]
    bench.run()
    check_output(bench, line, length=8)


def test_a_request_goes_before_lines_that_wait_longer():
    """The same if a line of a batch has waited so long that it is the first of the queue."""
    bench = Bench(num_pages=64, max_num_seqs=2, yielding=(1, 1_000_000))
    bench.send(user_msg(50, prompt(6, 50), max_tokens=9, ignore_eos=True))
    bench.step()
    bench.send(batch_line(1), batch_line(2))
    late = user_msg(51, prompt(6, 51), max_tokens=3, ignore_eos=True)
    late = msgspec.structs.replace(late, stamps=Stamps(received_ns=2_000_000_000_000))
    bench.send(late)
    assert bench.gauge("has_room") == 1
    assert set(bench.step()) == {50, 51}
    assert bench.gauge("has_room") == 0, "what gives way is not said to stall"
    bench.run()
    assert list(bench.inbox.finished)[:2] == [(51, 0), (50, 0)]


def test_a_turn_of_batches_keeps_to_a_budget_smaller_than_the_rows():
    bench = Bench(num_pages=64, max_num_seqs=8, max_num_batched_tokens=4, yielding=(3, 2))
    lines = [batch_line(uid) for uid in (1, 2, 3)]
    bench.send(*lines)
    while bench.gauge("decoding") < 3:
        bench.step()
    bench.send(*(user_msg(uid, prompt(6, uid), max_tokens=20, ignore_eos=True) for uid in (50, 51, 52, 53)))
    bench.run()
    for message in lines:
        check_output(bench, message)


def test_rows_of_batches_give_their_pages_up_for_a_request():
    bench = Bench(num_pages=16, max_model_len=64, max_num_batched_tokens=64, yielding=(1, 1_000_000))
    lines = [batch_line(uid, max_tokens=30, length=12) for uid in (1, 2, 3)]
    bench.send(*lines)
    bench.step()
    bench.send(user_msg(50, prompt(50, 50), max_tokens=9, ignore_eos=True))
    bench.step()
    while (50, 0) not in bench.inbox.finished:
        assert set(bench.step()) == {50}
    assert bench.gauge("preemptions") == 3
    bench.run()
    for message in lines:
        check_output(bench, message, length=12)


def test_batches_continue_while_no_other_request_can_have_a_row():
    """One whose grammar is being compiled, and those that wait in a scheduler that is about to be replaced."""
    bench = Bench(num_pages=64, max_num_seqs=4, yielding=(1, 1_000_000))
    bench.send(*(batch_line(uid, max_tokens=40) for uid in (1, 2, 3)))
    bench.step()
    bench.send(user_msg(50, prompt(40, 50), max_tokens=5))
    bench.scheduler.close_queue()
    assert set(bench.step()) == {1, 2, 3}
    bench.send(AbortMsg(50, 0))
    bench.run()


def test_paused_rows_can_be_aborted_and_asked_again():
    bench = Bench(num_pages=64, yielding=(1, 1_000_000))
    lines = [batch_line(uid) for uid in (1, 2, 3)]
    bench.send(*lines)
    for _ in range(4):
        bench.step()
    bench.send(user_msg(50, prompt(6, 50), max_tokens=20, ignore_eos=True))
    bench.step()
    assert (bench.gauge("paused"), bench.gauge("running")) == (2, 4)
    known = bench.output(3)[:2]
    bench.send(AbortMsg(2, 0), batch_line(3, attempt=1, output_ids=known))
    assert bench.gauge("paused") == 1 - bench.gauge("waiting") + 0
    bench.run()
    assert bench.end(2).finish_reason == "abort"
    check_output(bench, lines[0])
    expected = expected_output(prompt(6, 3), lines[2].sampling_params, VOCAB_SIZE, 64)
    assert known + bench.output(3, 1) == expected


def test_a_starved_row_is_in_no_step_and_continues_exactly_when_it_is_not_starved_any_more():
    """Also at the borders of pages, and when others have run meanwhile."""
    bench, starved = Bench(num_pages=64), set[int]()
    bench.scheduler.starve(starved)
    messages = [user_msg(uid, prompt(6, uid), max_tokens=20, ignore_eos=True) for uid in (1, 2)]
    bench.send(*messages)
    for _ in range(3):
        bench.step()
    starved.add(1)
    while rows := bench.step():
        assert set(rows) == {2}
    assert bench.output(2) == expected_output(prompt(6, 2), messages[1].sampling_params, VOCAB_SIZE, 64)
    assert bench.scheduler.gauges()["running"] == 1
    starved.clear()
    bench.run()
    assert bench.output(1) == expected_output(prompt(6, 1), messages[0].sampling_params, VOCAB_SIZE, 64)


def test_a_starved_queue_has_room_and_nothing_else_ever_has():
    """After each plan the scheduler reports by itself that every request that can have a row has one."""
    bench, starved = Bench(num_pages=16, max_num_seqs=3, max_num_batched_tokens=24), set[int]()
    bench.scheduler.starve(starved)
    rng = random.Random(5)
    bench.send(*(user_msg(uid, prompt(rng.randrange(3, 40), uid), max_tokens=9, ignore_eos=True) for uid in range(20)))
    rooms: list[float] = []
    run = bench.runner.run
    bench.runner.run = lambda batch: rooms.append(bench.scheduler.gauges()["has_room"]) or run(batch)
    bench.run()
    assert len(rooms) > 20
    assert not any(rooms)
    num_admitted = bench.scheduler.gauges()["admitted"]
    assert num_admitted >= 20
    starved.add(0)
    bench.send(user_msg(50, prompt(4, 50), max_tokens=9))
    assert bench.step() == {}
    gauges = bench.scheduler.gauges()
    assert (gauges["has_room"], gauges["waiting"], gauges["admitted"]) == (1, 1, num_admitted)
    starved.clear()
    bench.run()
    assert bench.scheduler.gauges()["admitted"] == num_admitted + 1
