"""Prompt logprobs: one per token, over chunks, cached prefixes, preemptions and continuations."""

import math

import msgspec
import pytest

from messages.columns import pack_float32, pack_int32, unpack_int32
from messages.ring.replies import DetokenizeMsg, OpenStream, PromptLogprobs
from messages.ring.requests import AbortMsg
from messages.ring.steps import LogprobColumns, PromptLogprobTargets
from messages.ring.timeline import ScheduleReport
from scheduler_proc.deciding.isolation import slice_rows
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.plain_steps import plain_step
from tests.scheduler_proc.simulated_runner import expected_logprobs, expected_output

PROMPT = [(place * place + 3) % VOCAB_SIZE for place in range(30)]


def logprobs_of(prompt: list[int], num_top: int) -> list[object]:
    return [*expected_logprobs(prompt, 1, num_top, VOCAB_SIZE)]


@pytest.mark.parametrize("num_top", [0, 1, 5])
@pytest.mark.parametrize("max_num_batched_tokens", [1, 3, 7, 29, 30, 31])
def test_all_tokens_but_the_first_have_logprobs_over_chunks(num_top, max_num_batched_tokens):
    bench = Bench(max_num_batched_tokens=max_num_batched_tokens)
    bench.send(user_msg(1, PROMPT, max_tokens=4, ignore_eos=True, num_prompt_logprobs=num_top))
    bench.run()
    assert bench.inbox.prompt_logprobs[1, 0] == logprobs_of(PROMPT, num_top)
    assert bench.output(1) == expected_output(PROMPT, user_msg(1, [], 4, ignore_eos=True).sampling_params, 50, 64)


def test_nothing_is_taken_from_the_cache_until_all_logprobs_are_known_and_all_is_provided_to_it():
    bench = Bench(max_num_batched_tokens=64)
    bench.send(user_msg(1, PROMPT, max_tokens=1))
    bench.run()
    cached = bench.gauge("pages_cached")
    bench.send(user_msg(2, PROMPT, max_tokens=1, num_prompt_logprobs=0))
    assert bench.step() == {2: 30}
    assert bench.end(2).usage.cached_tokens == 0
    assert bench.gauge("pages_cached") == cached, "the same pages twice"
    bench.send(user_msg(3, [*PROMPT[::-1]], max_tokens=1, num_prompt_logprobs=0))
    bench.run()
    bench.send(user_msg(4, [*PROMPT[::-1]], max_tokens=1))
    bench.run()
    assert bench.end(4).usage.cached_tokens == 28


def test_those_with_prompt_logprobs_do_not_wait_for_each_other_and_others_wait_for_them():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    bench.send(user_msg(1, PROMPT, num_prompt_logprobs=2), user_msg(2, PROMPT, num_prompt_logprobs=4))
    bench.send(user_msg(3, PROMPT))
    assert bench.step() == {1: 30, 2: 30}
    assert bench.runner.batches[0].prompt_logprobs is not None
    assert bench.runner.batches[0].prompt_logprobs.num_top == 4
    assert bench.step()[3] == 2
    bench.run()
    assert bench.inbox.prompt_logprobs == {(1, 0): logprobs_of(PROMPT, 2), (2, 0): logprobs_of(PROMPT, 4)}


def test_a_preempted_prompt_continues_where_its_logprobs_end():
    bench = Bench(num_pages=16, max_num_batched_tokens=12)
    bench.send(user_msg(1, [1] * 8, max_tokens=50, ignore_eos=True))
    bench.step()
    bench.send(user_msg(2, [2] * 8, max_tokens=50, ignore_eos=True))
    bench.send(user_msg(3, PROMPT, max_tokens=3, ignore_eos=True, num_prompt_logprobs=1, priority=9))
    while not bench.gauge("preemptions"):
        bench.step()
    bench.run()
    assert bench.inbox.prompt_logprobs[3, 0] == logprobs_of(PROMPT, 1)
    targets = [batch.prompt_logprobs for batch in bench.runner.batches if batch.prompt_logprobs is not None]
    assert b"".join(each.target_ids for each in targets) == pack_int32(PROMPT[1:]), "a token was targets twice"
    assert bench.end(3).usage.cached_tokens == 0


def test_a_prompt_preempted_in_mid_chunk_finds_its_own_pages_as_far_as_its_logprobs_are_known():
    bench = Bench(num_pages=16, max_num_batched_tokens=10)
    bench.send(user_msg(3, PROMPT, max_tokens=3, ignore_eos=True, num_prompt_logprobs=1))
    bench.step()
    stages = bench.scheduler._stages
    stages.preempt(stages.last_in_priority(stages.running.values()))
    stages.check()
    assert bench.step() == {3: 10}
    assert list(unpack_int32(bench.runner.batches[-1].context_lens)) == [8], "two pages of the ten computed tokens"
    bench.run()
    assert bench.inbox.prompt_logprobs[3, 0] == logprobs_of(PROMPT, 1)


@pytest.mark.parametrize("num_known", [1, 4])
def test_a_continuation_computes_prompt_logprobs_again(num_known):
    params = {"ignore_eos": True, "num_prompt_logprobs": 2, "num_logprobs": 1}
    free_run = expected_output(PROMPT, user_msg(1, [], 6, **params).sampling_params, VOCAB_SIZE, 64)
    bench = Bench(max_num_batched_tokens=11)
    known = free_run[:num_known]
    bench.send(user_msg(1, PROMPT, 6, attempt=1, output_ids=known, **params))
    bench.run()
    assert bench.inbox.prompt_logprobs[1, 1] == logprobs_of(PROMPT, 2)
    assert known + bench.output(1, 1) == free_run
    start = len(PROMPT) + num_known
    assert bench.inbox.logprobs[1, 1] == expected_logprobs(PROMPT + free_run, start, 1, VOCAB_SIZE)


def test_a_continuation_at_its_end_ends_at_once():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, 3, attempt=1, output_ids=[1, 2, 3], num_prompt_logprobs=0))
    assert bench.end(1, 1).finish_reason == "length"
    bench.check_idle()


@pytest.mark.parametrize("max_num_batched_tokens", [7, 29, 64])
def test_no_tokens_may_be_requested(max_num_batched_tokens):
    bench = Bench(max_num_batched_tokens=max_num_batched_tokens)
    bench.send(user_msg(1, PROMPT, 0, echo=True, num_prompt_logprobs=3))
    bench.run()
    end = bench.end(1)
    assert bench.inbox.prompt_logprobs[1, 0] == logprobs_of(PROMPT, 3)
    assert bench.output(1) == []
    assert (end.finish_reason, end.usage.prompt_tokens, end.usage.completion_tokens) == ("length", 30, 0)
    assert all(not batch.sample_tokens for batch in bench.runner.batches)


def test_a_prompt_without_logprobs_that_gets_no_token_is_not_computed():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, 0, echo=True))
    assert bench.end(1).finish_reason == "length"
    assert bench.inbox.opened[1, 0].prompt_ids == pack_int32(PROMPT)
    assert bench.step() == {}


@pytest.mark.parametrize("is_sharing", [True, False])
def test_a_prompt_without_output_may_fill_the_context_and_the_cache(is_sharing):
    prompt = [place % VOCAB_SIZE for place in range(64)]
    bench = Bench(num_pages=16, page_size=4, max_model_len=64, is_sharing=is_sharing)
    bench.send(user_msg(1, prompt, 0, num_prompt_logprobs=0), user_msg(2, prompt, 1, num_prompt_logprobs=0))
    bench.run()
    assert bench.inbox.prompt_logprobs[1, 0] == logprobs_of(prompt, 0)
    error = bench.end(2).error
    assert error is not None
    assert "maximum context length is 64" in error.message


@pytest.mark.parametrize(("max_tokens", "num_tokens"), [(0, 0), (2, 2)])
def test_a_prompt_of_one_token_has_no_logprobs(max_tokens, num_tokens):
    bench = Bench()
    bench.scheduler.receive(user_msg(1, [5], max_tokens, ignore_eos=True, num_prompt_logprobs=2))
    replies = bench.scheduler.pop_replies()
    assert isinstance(replies[0], OpenStream)
    assert isinstance(replies[1], PromptLogprobs)
    assert replies[1].logprobs.token_ids == b""
    bench.inbox.take(replies)
    bench.run()
    assert len(bench.output(1)) == num_tokens
    assert bench.inbox.prompt_logprobs[1, 0] == []


def test_prompt_logprobs_come_before_the_first_token_and_before_the_end():
    bench = Bench(max_num_batched_tokens=64)
    bench.scheduler.receive(user_msg(1, PROMPT, 1, num_prompt_logprobs=0))
    batch = bench.scheduler.schedule()
    assert batch is not None
    bench.scheduler.commit(bench.runner.run(batch))
    replies = [reply for reply in bench.scheduler.pop_replies() if not isinstance(reply, ScheduleReport)]
    assert [type(reply) for reply in replies] == [OpenStream, PromptLogprobs, DetokenizeMsg]


def test_an_abort_between_chunks_leaves_no_logprobs_behind():
    bench = Bench(max_num_batched_tokens=10)
    bench.send(user_msg(1, PROMPT, num_prompt_logprobs=0))
    bench.step()
    bench.send(AbortMsg(1, 0))
    bench.send(user_msg(1, PROMPT, 2, attempt=1, num_prompt_logprobs=0))
    bench.run()
    assert list(bench.inbox.prompt_logprobs) == [(1, 1)]
    assert bench.inbox.prompt_logprobs[1, 1] == logprobs_of(PROMPT, 0)


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_prompt_whose_logprobs_are_not_numbers_fails_alone(max_tokens):
    bench = Bench(max_num_batched_tokens=64)
    bench.send(user_msg(1, PROMPT, max_tokens, num_prompt_logprobs=0), user_msg(2, [4, 5], 2, num_prompt_logprobs=0))
    batch = bench.scheduler.schedule()
    assert batch is not None
    output = bench.runner.run(batch)
    logprobs = output.prompt_logprobs
    assert logprobs is not None
    bad = pack_float32([math.nan]) + logprobs.logprobs[4:]
    output = msgspec.structs.replace(output, prompt_logprobs=msgspec.structs.replace(logprobs, logprobs=bad))
    bench.scheduler.commit(output)
    bench.scheduler.check()
    replies = bench.scheduler.pop_replies()
    assert [reply.uid for reply in replies if isinstance(reply, PromptLogprobs)] == [2]
    assert isinstance(replies[-1], DetokenizeMsg)
    assert [(row.uid, row.finish_reason) for row in replies[-1].finished] == [(1, "error")]


def test_logprobs_of_other_tokens_are_a_bug():
    bench = Bench()
    bench.send(user_msg(1, [1, 2, 3], num_prompt_logprobs=0))
    batch = bench.scheduler.schedule()
    assert batch is not None
    output = msgspec.structs.replace(bench.runner.run(batch), prompt_logprobs=None)
    with pytest.raises(AssertionError, match="the result lacks the entries of each token with a logprob"):
        bench.scheduler.commit(output)
    assert bench.scheduler.schedule() is not None
    others = LogprobColumns(pack_int32([4, 5]), bytes(8), 0, b"", b"")
    output = msgspec.structs.replace(output, prompt_logprobs=others)
    with pytest.raises(AssertionError):
        bench.scheduler.commit(output)


def test_a_part_of_a_step_has_the_logprobs_of_what_comes_after_its_own_tokens():
    targets = PromptLogprobTargets(pack_int32([0, 1, 4, 5]), pack_int32([7, 8, 9, 3]), 2)
    step = plain_step(6, prompt_logprobs=targets)
    assert slice_rows(step, 0, 6).prompt_logprobs == targets
    assert slice_rows(step, 1, 5).prompt_logprobs == PromptLogprobTargets(pack_int32([0, 3]), pack_int32([8, 9]), 2)
    assert slice_rows(step, 2, 4).prompt_logprobs is None
