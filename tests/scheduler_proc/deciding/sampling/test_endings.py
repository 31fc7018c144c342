"""How requests end: each ending is reported once and leaves nothing behind."""

import pytest

from messages.errors import ErrorInfo
from messages.ring.requests import AbortMsg, StopSeen
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.sampling.endings import Ending
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_output

PROMPT = [3, 1, 4, 1, 5]
FREE_RUN = expected_output(PROMPT, user_msg(0, PROMPT, max_tokens=40).sampling_params, VOCAB_SIZE, 64)
"""What the prompt gets when nothing ends it."""


def first_index_of_new(tokens: list[int], start: int) -> int:
    """Returns an index from `start` on whose token has not come before."""
    return next(index for index in range(start, len(tokens)) if tokens[index] not in tokens[:index])


def test_max_tokens_end_with_length():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=3, ignore_eos=True))
    bench.run()
    end = bench.end(1)
    assert bench.output(1) == FREE_RUN[:3]
    assert (end.finish_reason, end.ended_by_token, end.stop_reason, end.error) == ("length", False, None, None)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (5, 3)


def test_one_token_is_enough():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=1, ignore_eos=True))
    assert bench.run() == 1
    assert bench.output(1) == FREE_RUN[:1]


def test_the_context_ends_with_length():
    bench = Bench(max_model_len=16)
    bench.send(user_msg(1, PROMPT, max_tokens=100, ignore_eos=True))
    bench.run()
    assert bench.end(1).finish_reason == "length"
    assert len(bench.output(1)) == 11


def test_a_prompt_of_all_but_one_token_of_the_context_gets_one():
    bench = Bench(max_model_len=16)
    bench.send(user_msg(1, PROMPT * 3, max_tokens=100, ignore_eos=True))
    bench.run()
    assert len(bench.output(1)) == 1


@pytest.mark.parametrize("start", [0, 4])
def test_the_end_of_sequence_token_counts_and_is_notified(start):
    index = first_index_of_new(FREE_RUN, start)
    bench = Bench(eos_token_id=FREE_RUN[index])
    bench.send(user_msg(1, PROMPT, max_tokens=40))
    bench.run()
    end = bench.end(1)
    assert bench.output(1) == FREE_RUN[: index + 1]
    assert (end.finish_reason, end.ended_by_token, end.stop_reason) == ("stop", True, None)
    assert end.usage.completion_tokens == index + 1


def test_the_end_of_sequence_token_can_be_ignored():
    bench = Bench(eos_token_id=FREE_RUN[2])
    bench.send(user_msg(1, PROMPT, max_tokens=8, ignore_eos=True))
    bench.run()
    assert bench.output(1) == FREE_RUN[:8]
    assert bench.end(1).finish_reason == "length"


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_stop_token_is_named(ignore_eos):
    index = first_index_of_new(FREE_RUN, 3)
    bench = Bench(eos_token_id=VOCAB_SIZE + 1)
    bench.send(user_msg(1, PROMPT, max_tokens=40, stop_token_ids=(FREE_RUN[index], 10_000), ignore_eos=ignore_eos))
    bench.run()
    end = bench.end(1)
    assert bench.output(1) == FREE_RUN[: index + 1]
    assert (end.finish_reason, end.ended_by_token, end.stop_reason) == ("stop", True, FREE_RUN[index])


def test_an_end_token_goes_before_a_length_reached_with_it():
    index = first_index_of_new(FREE_RUN, 3)
    bench = Bench(eos_token_id=FREE_RUN[index])
    bench.send(user_msg(1, PROMPT, max_tokens=index + 1))
    bench.run()
    assert bench.end(1).finish_reason == "stop"


def test_a_stop_string_ends_the_row_between_steps():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=40, ignore_eos=True))
    bench.step()
    bench.step()
    bench.send(StopSeen(1, 0), StopSeen(1, 0))
    end = bench.end(1)
    assert (end.finish_reason, end.ended_by_token, end.stop_reason) == ("stop", False, None)
    assert end.usage.completion_tokens == 2
    bench.run()


def abort_prefill(bench):
    bench.send(user_msg(9, list(range(45))))
    bench.step()
    assert bench.gauge("prefilling") == 1


def abort_decode(bench):
    bench.send(user_msg(9, PROMPT, max_tokens=40, ignore_eos=True))
    bench.step()
    bench.step()
    assert bench.gauge("decoding") == 1


@pytest.mark.parametrize("reason", ["abort", "timeout"])
@pytest.mark.parametrize("go_to_state", [lambda bench: None, abort_prefill, abort_decode])
def test_an_abort_ends_a_request_in_every_state(go_to_state, reason):
    bench = Bench(max_num_batched_tokens=16)
    go_to_state(bench)
    if not bench.inbox.opened:
        bench.send(user_msg(9, PROMPT))
    bench.send(AbortMsg(9, 0, reason), AbortMsg(9, 0))
    assert bench.end(9).finish_reason == reason
    assert bench.end(9).usage.completion_tokens == len(bench.output(9))
    assert bench.gauge("requests") == 0
    bench.run()


def test_an_abort_ends_a_preempted_request():
    bench = Bench(num_pages=16, max_num_batched_tokens=64)
    prompts = {uid: [uid] * 20 for uid in (1, 2)}
    bench.send(*(user_msg(uid, ids, max_tokens=30, ignore_eos=True) for uid, ids in prompts.items()))
    while not bench.gauge("preemptions"):
        bench.step()
    bench.send(AbortMsg(2, 0))
    assert bench.end(2).finish_reason == "abort"
    assert bench.end(2).usage.completion_tokens == len(bench.output(2)) > 0
    bench.run()
    assert bench.end(1).finish_reason == "length"


def test_an_abort_of_an_unknown_request_reports_nothing():
    bench = Bench()
    bench.send(AbortMsg(77, 0), StopSeen(77, 0))
    assert not bench.inbox.opened
    assert not bench.inbox.finished
    assert bench.step() == {}


@pytest.mark.parametrize("at", [0, 3])
def test_a_row_without_a_next_token_fails_alone(at):
    bench = Bench()
    other = [9, 9, 9]
    bench.send(user_msg(1, PROMPT, max_tokens=20, ignore_eos=True), user_msg(2, other, max_tokens=20, ignore_eos=True))
    for _ in range(at):
        bench.step()
    bench.runner.nan = {(bench.output(1) or PROMPT)[-1]}
    bench.step()
    bench.runner.nan = set()
    end = bench.end(1)
    assert end.finish_reason == "error"
    assert end.error is not None
    assert end.error.status == 500
    assert end.usage.completion_tokens == at
    assert bench.output(1) == FREE_RUN[:at]
    bench.run()
    expected = expected_output(other, user_msg(2, [], max_tokens=20, ignore_eos=True).sampling_params, VOCAB_SIZE, 64)
    assert bench.output(2) == expected
    assert bench.end(2).finish_reason == "length"


def test_what_a_failed_row_computed_is_not_kept_for_others():
    bench = Bench(max_num_batched_tokens=12)
    ids = list(range(20))
    bench.send(user_msg(1, ids))
    bench.step()
    assert bench.gauge("pages_cached") == 3
    bench.runner.nan = {19}
    bench.step()
    assert bench.end(1).finish_reason == "error"
    assert bench.gauge("pages_cached") == 0


def test_a_failed_chunk_in_mid_prompt_ends_its_request():
    bench = Bench(max_num_batched_tokens=12)
    bench.send(user_msg(1, list(range(40))))
    batch = bench.scheduler.schedule()
    assert batch is not None
    error = ErrorInfo(500, "no")
    bench.scheduler.commit(bench.runner.run(batch), {0: error})
    bench.inbox.take(bench.scheduler.pop_replies())
    assert bench.end(1).error == error
    bench.run()
    assert bench.gauge("pages_cached") == 0


def test_an_end_of_sequence_token_goes_before_a_stop_token_of_the_same_id():
    limits = Limits(64, VOCAB_SIZE, (EOS,))
    pending = PendingReq(user_msg(1, PROMPT, stop_token_ids=(5, EOS)), limits, 1)
    assert pending.end_tokens == {5: Ending("stop", True, 5), EOS: Ending("stop", True)}
    pending = PendingReq(user_msg(1, PROMPT, stop_token_ids=(5, EOS), ignore_eos=True), limits, 1)
    assert pending.end_tokens == {5: Ending("stop", True, 5), EOS: Ending("stop", True, EOS)}
