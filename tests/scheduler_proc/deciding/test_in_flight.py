"""Steps planned behind a step in flight: their rows, the sources of their tokens, and which results count."""

from array import array

import pytest

from messages.columns import num_int32, pack_float32, pack_int32, unpack_int32, unpack_int64
from messages.ring.requests import AbortMsg, DropBefore, FlushCache, StopSeen
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding.isolation import run_step
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_logprobs, unpack_logprobs

FREE = {"ignore_eos": True}


def planned(bench: Bench) -> Batch:
    batch = bench.scheduler.schedule()
    assert batch is not None
    bench.scheduler.check()
    return batch


def commit(bench: Bench, batch: Batch, tokens: list[int]) -> None:
    """Commits a result made up by the test."""
    assert len(tokens) == batch.num_sampled
    bench.scheduler.commit(ForwardOutput(batch.step_id, pack_int32(tokens)))
    bench.scheduler.check()
    bench.inbox.take(bench.scheduler.pop_replies())


def uids(batch: Batch) -> list[int]:
    return list(unpack_int64(batch.uids))


def sources(batch: Batch) -> list[int]:
    return list(unpack_int32(batch.future_token_indices))


def test_a_row_continues_behind_its_token_wherever_that_will_be():
    bench = Bench(max_num_batched_tokens=12)
    bench.send(user_msg(1, [1] * 4, 9, **FREE), user_msg(2, [2] * 5, 9, **FREE), user_msg(3, [3] * 10, 9, **FREE))
    first = planned(bench)
    assert uids(first) == [1, 2, 3]
    assert not first.future_token_indices
    second = planned(bench)
    assert (second.phase, uids(second), sources(second)) == ("mixed", [1, 2, 3], [0, 1])
    assert list(unpack_int32(second.positions)) == [4, 5, *range(3, 10)]
    assert list(unpack_int64(second.sample_positions)) == [5, 6, 10]
    assert list(unpack_int32(second.token_ids)) == [0, 0, *[3] * 7]
    assert bench.scheduler.gauges()["steps_ahead"] == 1
    commit(bench, first, [11, 12])
    third = planned(bench)
    assert (third.phase, uids(third), sources(third)) == ("decode", [1, 2, 3], [0, 1, 2])
    commit(bench, second, [21, 22, 23])
    commit(bench, third, [31, 32, 33])
    fourth = planned(bench)
    assert not fourth.future_token_indices
    assert list(unpack_int32(fourth.token_ids)) == [31, 32, 33], "with no step in flight the tokens are known"
    assert [bench.output(uid) for uid in (1, 2, 3)] == [[11, 21, 31], [12, 22, 32], [23, 33]]


def test_slots_and_pages_continue_over_the_border_of_a_page():
    bench = Bench(page_size=2, num_pages=40)
    bench.send(user_msg(1, [1, 2, 3], 12, **FREE))
    batches = [planned(bench), planned(bench)]
    for token in range(8):
        commit(bench, batches.pop(0), [token])
        batches.append(planned(bench))
        newest = batches[-1]
        (position,), (slot,) = unpack_int32(newest.positions), unpack_int64(newest.slots)
        table = unpack_int32(newest.page_tables)
        assert position == token + 4
        assert slot == table[position // 2] * 2 + position % 2
        assert list(table[: position // 2]) == bench.scheduler._stages.running[1].pages[: position // 2]


def test_a_row_that_will_have_its_length_is_not_planned():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 2, **FREE), user_msg(2, [2] * 4, 1, **FREE), user_msg(3, [3] * 4, 3, **FREE))
    first, second = planned(bench), planned(bench)
    assert uids(second) == [1, 3]
    assert sources(second) == [0, 2]
    commit(bench, first, [5, 5, 5])
    third = planned(bench)
    assert (uids(third), sources(third)) == ([3], [1])
    commit(bench, second, [6, 6])
    assert bench.scheduler.schedule() is None, "all that runs has its length with the step in flight"
    commit(bench, third, [8])
    assert [bench.output(uid) for uid in (1, 2, 3)] == [[5, 6], [5], [5, 6, 8]]
    bench.check_idle()


@pytest.mark.parametrize(
    ("params", "end_token", "reason"),
    [({}, EOS, "stop"), ({"stop_token_ids": (9,), **FREE}, 9, "stop")],
)
def test_a_row_that_ended_has_one_result_too_many(params, end_token, reason):
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 9, **params), user_msg(2, [2] * 4, 9, **FREE))
    first, second = planned(bench), planned(bench)
    commit(bench, first, [end_token, 5])
    assert bench.end(1).finish_reason == reason
    third = planned(bench)
    assert (uids(third), sources(third)) == ([2], [1]), "its token is where it was put in the step before"
    commit(bench, second, [33, 6])
    assert bench.output(1) == [end_token]
    assert bench.output(2) == [5, 6]


@pytest.mark.parametrize(
    ("message", "reason"), [(AbortMsg(1, 0), "abort"), (StopSeen(1, 0), "stop"), (DropBefore(2), "abort")]
)
def test_a_row_that_is_ended_from_outside_gets_nothing_of_either_step(message, reason):
    bench = Bench()
    bench.send(user_msg(1, [1] * 7, 9, **FREE), user_msg(2, [2] * 4, 9, **FREE))
    first, second = planned(bench), planned(bench)
    bench.send(message, FlushCache(7, is_forced=True))
    assert bench.end(1).finish_reason == reason
    commit(bench, first, [4, 5])
    third = planned(bench)
    assert (uids(third), sources(third)) == ([2], [1])
    commit(bench, second, [4, 6])
    assert bench.output(1) == []
    assert bench.output(2) == [5, 6]


def test_a_newer_attempt_gets_nothing_of_the_older_ones_steps():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 9, **FREE))
    first, second = planned(bench), planned(bench)
    bench.send(user_msg(1, [1] * 4, 9, attempt=1, **FREE))
    commit(bench, first, [4])
    third = planned(bench)
    assert third.phase == "prefill"
    commit(bench, second, [4])
    commit(bench, third, [6])
    assert (bench.output(1, 0), bench.output(1, 1)) == ([], [6])


def test_pages_of_an_ended_row_are_free_and_no_slot_beyond_what_is_committed_is_cached():
    bench = Bench(page_size=4)
    bench.send(user_msg(1, [1] * 7, 9))
    first, second = planned(bench), planned(bench)
    commit(bench, first, [EOS])
    assert bench.gauge("pages_cached") == 1, "of the second page the last slot is not computed"
    assert bench.gauge("pages_held") == 0
    (slot,) = unpack_int64(second.slots)
    assert slot // 4 not in [page for node in bench.cache._tree.nodes() for page in node.pages]
    commit(bench, second, [3])
    bench.check_idle()


DEPENDENT = {"bad_word_ids": (pack_int32([1, 2]),)}
"""Logits that depend on which token the last one is, in a way that only the host works out."""


def test_a_row_whose_logits_depend_on_its_last_token_sits_out_until_that_is_known():
    bench = Bench()
    bench.send(*(user_msg(uid, [uid] * 4, 9, **FREE, **(DEPENDENT if uid == 2 else {})) for uid in (1, 2, 3)))
    first, second = planned(bench), planned(bench)
    assert (uids(second), sources(second)) == ([1, 3], [0, 2])
    commit(bench, first, [4, 5, 6])
    third = planned(bench)
    assert (uids(third), sources(third)) == ([1, 2, 3], [0, -1, 1])
    assert list(unpack_int32(third.token_ids)) == [0, 5, 0]
    assert list(unpack_int32(third.positions)) == [5, 4, 5]
    commit(bench, second, [7, 8])
    fourth = planned(bench)
    assert (uids(fourth), sources(fourth)) == ([1, 3], [0, 2]), "it waits for the third step's token"
    commit(bench, third, [10, 11, 12])
    commit(bench, fourth, [13, 14])
    assert [bench.output(uid) for uid in (1, 2, 3)] == [[4, 7, 10, 13], [5, 11], [6, 8, 12, 14]]


def test_where_no_more_rows_continue_than_sit_out_the_step_is_committed_first():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 9, **FREE), user_msg(2, [2] * 4, 9, **FREE, **DEPENDENT))
    first = planned(bench)
    assert bench.scheduler.schedule() is None
    commit(bench, first, [4, 5])
    second = planned(bench)
    assert uids(second) == [1, 2]
    assert not second.future_token_indices
    bench.send(AbortMsg(2, 0))
    assert sources(planned(bench)) == [0]


def test_rows_that_take_turns_are_in_one_step_again():
    """One that depends on its last token may run while another is in flight, but not for good."""
    bench = Bench(max_num_batched_tokens=12)
    bench.send(*(user_msg(uid, [uid] * 4, 4, **FREE) for uid in (1, 2)))
    bench.send(*(user_msg(uid, [uid] * 4, 9, **DEPENDENT, **FREE) for uid in (3, 4)))
    batches = [planned(bench)]
    for expected in ([1, 2, 4], [1, 2, 3], [1, 2, 4]):
        batches.append(planned(bench))
        assert uids(batches[-1]) == expected
        before = batches.pop(0)
        commit(bench, before, [5] * before.num_sampled)
    assert bench.scheduler.schedule() is None, "the first two have their length, and one of the others is in flight"
    commit(bench, batches[0], [5, 5, 5])
    assert uids(planned(bench)) == [3, 4]


def test_a_row_that_sits_out_gets_its_page_when_it_continues():
    bench = Bench(page_size=4)
    bench.send(*(user_msg(uid, [uid] * 4, 9, **FREE) for uid in (1, 2, 4)))
    bench.send(user_msg(3, [3] * 4, 9, **FREE, **DEPENDENT))
    first, second = planned(bench), planned(bench)
    assert uids(second) == [1, 2, 4]
    commit(bench, first, [5, 6, 7, 8])
    third = planned(bench)
    assert (uids(third), sources(third)) == ([1, 2, 4, 3], [0, 1, 2, -1])
    (position,), (slot,) = unpack_int32(third.positions)[3:], unpack_int64(third.slots)[3:]
    assert position == 4
    assert slot == bench.scheduler._stages.running[3].pages[1] * 4
    commit(bench, second, [5, 6, 7])
    commit(bench, third, [5, 6, 7, 8])
    assert [bench.output(uid) for uid in (1, 2, 3, 4)] == [[5, 5, 5], [6, 6, 6], [8, 8], [7, 7, 7]]


def test_a_row_that_sits_out_may_end_from_outside():
    bench = Bench()
    bench.send(*(user_msg(uid, [uid] * 4, 9, num_logprobs=uid, **FREE) for uid in (1, 3)))
    bench.send(user_msg(2, [2] * 4, 9, **FREE, **DEPENDENT))
    first = planned(bench)
    bench.send(AbortMsg(2, 0))
    second = planned(bench)
    bench.scheduler.commit(bench.runner.run(first))
    bench.inbox.take(bench.scheduler.pop_replies())
    third = planned(bench)
    assert uids(second) == uids(third) == [1, 3]
    assert bench.output(2) == []
    assert [len(bench.inbox.logprobs[uid, 0]) for uid in (1, 3)] == [1, 1]


def test_penalties_are_planned_ahead_with_a_history_that_lacks_its_last_token():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 9, **FREE), user_msg(2, [2] * 3, 9, **FREE, presence_penalty=0.5))
    first, second = planned(bench), planned(bench)
    assert sources(second) == [0, 1]
    histories: list[list[int]] = []
    for batch in (first, second):
        assert batch.logits_processing is not None
        assert list(unpack_int32(batch.logits_processing.num_history_prompt)) == [3]
        histories.append(list(unpack_int32(batch.logits_processing.history_ids)))
    assert histories == [[2, 2, 2], [2, 2, 2, 0]]
    commit(bench, first, [4, 5])
    third = planned(bench)
    assert third.logits_processing is not None
    assert list(unpack_int32(third.logits_processing.history_ids)) == [2, 2, 2, 5, 0]


def test_changes_that_depend_on_the_number_of_tokens_are_planned_ahead():
    bench = Bench()
    biases = {"bias_ids": pack_int32([3]), "bias_values": pack_float32([2.5])}
    bench.send(user_msg(1, [1] * 4, 9, min_tokens=2, **biases))
    batches = [planned(bench)]
    banned: list[bool] = []
    for token in (11, 12, 13):
        batches.append(planned(bench))
        edits = batches[-1].logits_processing
        assert edits is not None
        banned.append(EOS in unpack_int32(edits.bias_ids))
        assert 3 in unpack_int32(edits.bias_ids)
        commit(bench, batches.pop(0), [token])
    assert banned == [True, False, False], "one token was about to be sampled, then two, then three"


def test_no_one_gives_way_while_a_step_is_in_flight():
    bench = Bench(num_pages=16, page_size=4)
    bench.send(user_msg(1, [1] * 27, 20, **FREE), user_msg(2, [2] * 31, 20, **FREE))
    batches = [planned(bench)]
    while (batch := bench.scheduler.schedule()) is not None:
        batches.append(batch)
        first = batches.pop(0)
        commit(bench, first, [4] * first.num_sampled)
        assert bench.gauge("pages_free") + bench.gauge("pages_cached") > 0 or len(batches) == 1
    assert bench.gauge("preemptions") == 0
    commit(bench, batches[0], [4] * batches[0].num_sampled)
    while bench.gauge("preemptions") == 0:
        batch = planned(bench)
        commit(bench, batch, [4] * batch.num_sampled)
    assert bench.gauge("waiting") == 1


def test_a_prompt_that_another_computes_is_waited_for():
    bench = Bench(max_num_batched_tokens=8)
    bench.send(user_msg(1, [9] * 14, 9, **FREE), user_msg(2, [9] * 14, 9, **FREE))
    first = planned(bench)
    assert uids(first) == [1]
    second = planned(bench)
    assert uids(second) == [1], "the pages of the step in flight need not be computed twice"
    commit(bench, first, [])
    third = planned(bench)
    assert uids(third) == [1], "nor those that the second one computes"
    commit(bench, second, [5])
    fourth = planned(bench)
    assert (uids(fourth), sources(fourth)) == ([1, 2], [0])
    assert list(unpack_int32(fourth.context_lens)) == [15, 12]


def test_prompt_logprobs_over_chunks_in_flight():
    bench = Bench(max_num_batched_tokens=4)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    bench.send(user_msg(1, prompt, 2, num_prompt_logprobs=1, **FREE))
    batches = [planned(bench)]
    while (batch := bench.scheduler.schedule()) is not None:
        assert batch.prompt_logprobs is None or num_int32(batch.prompt_logprobs.target_ids) in (4, 1)
        batches.append(batch)
        before = batches.pop(0)
        if before.future_token_indices:
            break
        bench.scheduler.commit(bench.runner.run(before))
        bench.inbox.take(bench.scheduler.pop_replies())
    assert bench.inbox.prompt_logprobs[1, 0] == expected_logprobs(prompt, 1, 1, VOCAB_SIZE)


def test_logprobs_of_the_rows_that_continue_are_theirs():
    bench = Bench(max_num_batched_tokens=40)
    bench.send(*(user_msg(uid, [uid] * 5, 9, num_logprobs=2, **FREE) for uid in (1, 2, 3)))
    bench.send(user_msg(4, [4] * 12, 9, num_prompt_logprobs=1), user_msg(5, [5] * 6, 9, num_prompt_logprobs=1, **FREE))
    batch = planned(bench)
    output = bench.runner.run(batch)
    assert output.logprobs is not None
    all_logprobs = unpack_logprobs(output.logprobs, 2)
    bench.send(AbortMsg(2, 0), AbortMsg(4, 0))
    tokens = array("i", output.next_tokens)
    bench.runner.poison = {5}
    output, failures = run_step(bench.runner.run, batch)
    bench.scheduler.commit(output, failures)
    bench.inbox.take(bench.scheduler.pop_replies())
    assert bench.inbox.logprobs[1, 0] == [all_logprobs[0]]
    assert bench.inbox.logprobs[3, 0] == [all_logprobs[2]]
    assert bench.output(2) == bench.output(4) == []
    assert bench.end(5).error == failures[4], "the failure is that of the same row"
    assert (bench.output(1), bench.output(3)) == ([tokens[0]], [tokens[2]])


def test_a_row_without_a_token_fails_and_its_next_result_counts_for_nothing():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 9, **FREE), user_msg(2, [2] * 4, 9, **FREE))
    first, second = planned(bench), planned(bench)
    commit(bench, first, [-1, 5])
    assert bench.end(1).finish_reason == "error"
    commit(bench, second, [-1, 6])
    assert bench.output(2) == [5, 6]


def test_steps_that_are_forgotten_are_planned_again():
    bench = Bench(max_num_batched_tokens=12)
    bench.send(user_msg(1, [1] * 4, 9, **FREE), user_msg(2, [2] * 16, 9, **FREE))
    commit(bench, planned(bench), [5])
    first, second = planned(bench), planned(bench)
    assert second.future_token_indices
    bench.scheduler.forget_steps()
    bench.scheduler.check()
    again = planned(bench)
    assert not again.future_token_indices
    assert again.step_id == second.step_id + 1
    for column in ("uids", "token_ids", "positions", "query_lens", "slots", "sample_tokens"):
        assert getattr(again, column) == getattr(first, column)
    commit(bench, again, [6, 7])
    assert (bench.output(1), bench.output(2)) == ([5, 6], [7])


def test_rows_that_run_end_behind_a_closed_queue():
    bench = Bench()
    bench.send(user_msg(1, [1] * 4, 3, **FREE))
    first = planned(bench)
    bench.scheduler.close_queue()
    bench.send(user_msg(2, [2] * 4, 3, **FREE))
    second = planned(bench)
    assert uids(second) == [1]
    commit(bench, first, [5])
    third = planned(bench)
    commit(bench, second, [6])
    assert bench.scheduler.schedule() is None
    assert not bench.scheduler.pop_drained()
    commit(bench, third, [8])
    assert bench.scheduler.pop_drained()
