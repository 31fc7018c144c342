"""Pooled prompts: chunks, cached prefixes, shared work, whole rows, numbers that are not finite, parts of a step."""

import math

import msgspec
import pytest

from messages.columns import pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.ring.requests import YIELDING_PRIORITY, AbortMsg, Pooling, UserMsg
from messages.ring.steps import PooledColumns
from scheduler_proc.computing.step.features.token_types import read_types
from scheduler_proc.deciding.isolation import run_step, slice_rows
from scheduler_proc.deciding.sampling.endings import NOT_FINITE
from scheduler_proc.deciding.tasks.pooling import PoolingTask
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_pooling import POOLINGS, expected_vectors
from tests.scheduler_proc.simulated_runner import values_of

PROMPT = [(place * place + 3) % VOCAB_SIZE for place in range(30)]
BAD = 11
"""A token that no other prompt has."""

LABELS = Pooling("labels", label_ids=pack_int32([5, 2, 9]))
MEAN = Pooling("embed", way="mean")
WHOLE = Pooling("embed", way="mean", is_whole=True)


def pooled(uid: int, prompt: list[int], pooling: Pooling, priority: int = 0) -> UserMsg:
    return user_msg(uid, prompt, max_tokens=0, pooling=pooling, priority=priority)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("max_num_batched_tokens", [1, 7, 29, 64])
def test_vectors_do_not_depend_on_chunks(pooling: Pooling, max_num_batched_tokens: int):
    bench = Bench(max_num_batched_tokens=max_num_batched_tokens)
    bench.send(pooled(1, PROMPT, pooling))
    bench.run()
    assert bench.inbox.pooled[1, 0] == expected_vectors(values_of(PROMPT), pooling)
    assert bench.end(1).usage.prompt_tokens == 30
    assert bench.end(1).finish_reason == "length"


def test_the_last_token_uses_a_cached_prefix_and_a_mean_does_not_but_leaves_one():
    bench = Bench(max_num_batched_tokens=64)
    bench.send(pooled(1, PROMPT, MEAN))
    bench.run()
    bench.send(pooled(2, PROMPT, LABELS), pooled(3, PROMPT, MEAN))
    bench.run()
    assert [bench.end(uid).usage.cached_tokens for uid in (1, 2, 3)] == [0, 28, 0]


def test_labels_after_a_shared_prefix_wait_for_it_and_a_mean_does_not():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    bench.send(*(pooled(uid, [*PROMPT, uid], LABELS) for uid in (1, 2, 3)), pooled(4, PROMPT, MEAN))
    assert bench.step() == {1: 31, 4: 30}
    assert bench.step() == {2: 3, 3: 3}
    bench.run()
    for uid in (1, 2, 3):
        assert bench.inbox.pooled[uid, 0] == expected_vectors(values_of([*PROMPT, uid]), LABELS)


def test_whole_prompts_share_a_step_if_they_fit_and_none_is_cut():
    bench = Bench(num_pages=64, max_num_batched_tokens=64, max_num_seqs=4)
    lengths = {1: 30, 2: 20, 3: 15, 4: 14, 5: 64, 6: 1}
    bench.send(*(pooled(uid, (PROMPT * 3)[:length], WHOLE) for uid, length in lengths.items()))
    steps: list[dict[int, int]] = []
    while rows := bench.step():
        steps.append(rows)
    assert steps == [{1: 30, 2: 20}, {3: 15, 4: 14}, {5: 64}, {6: 1}]
    bench.check_idle()
    for uid, length in lengths.items():
        assert bench.inbox.pooled[uid, 0] == expected_vectors(values_of((PROMPT * 3)[:length]), WHOLE)


def test_a_whole_prompt_that_gives_way_is_not_cut_either():
    bench = Bench(num_pages=64, max_num_batched_tokens=64, yielding=(2, 2))
    bench.send(*(pooled(uid, PROMPT, WHOLE) for uid in (1, 2, 3)))
    bench.send(pooled(9, PROMPT, WHOLE, priority=YIELDING_PRIORITY))
    bench.run()
    assert bench.inbox.pooled[9, 0] == expected_vectors(values_of(PROMPT), WHOLE)


def test_an_abort_between_chunks_ends_without_a_vector():
    bench = Bench(max_num_batched_tokens=8)
    bench.send(pooled(1, PROMPT, MEAN))
    bench.step()
    bench.send(AbortMsg(1, 0))
    bench.run()
    assert bench.end(1).finish_reason == "abort"
    assert not bench.inbox.pooled


def test_a_vector_that_is_not_finite_fails_its_request_alone():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    bench.send(*(pooled(uid, [uid, *PROMPT], Pooling("embed")) for uid in (1, 2, 3)))
    batch = bench.plan()
    assert batch is not None
    output = bench.runner.run(batch)
    assert output.pooled is not None
    values = unpack_float32(output.pooled.values)
    values[2] = math.nan
    bad = msgspec.structs.replace(output.pooled, values=values.tobytes())
    bench.scheduler.commit(msgspec.structs.replace(output, pooled=bad))
    bench.inbox.take(bench.scheduler.pop_replies())
    assert {uid for uid, _ in bench.inbox.pooled} == {1, 3}
    assert bench.end(2).error == NOT_FINITE
    bench.check_idle()


def test_a_logprob_may_be_that_of_an_impossible_token():
    def columns(*numbers: float) -> PooledColumns:
        return PooledColumns(pack_int32([len(numbers)]), pack_int32([1]), pack_float32(numbers))

    assert PoolingTask(LABELS, 30).add(columns(-math.inf, -1.0))
    assert not PoolingTask(LABELS, 30).add(columns(math.nan))
    assert not PoolingTask(Pooling("embed"), 30).add(columns(-math.inf))


def test_a_step_that_fails_is_pooled_in_parts():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    bench.send(*(pooled(uid, [uid, *PROMPT], pooling) for uid, pooling in enumerate(POOLINGS, 1)))
    bench.send(user_msg(20, PROMPT, max_tokens=2, ignore_eos=True), pooled(21, [BAD], MEAN))
    bench.runner.poison.add(BAD)
    while (batch := bench.plan()) is not None:
        output, failures = run_step(bench.runner.run, batch)
        bench.scheduler.commit(output, failures)
        bench.inbox.take(bench.scheduler.pop_replies())
    bench.check_idle()
    assert bench.end(21).error is not None
    for uid, pooling in enumerate(POOLINGS, 1):
        assert bench.inbox.pooled[uid, 0] == expected_vectors(values_of([uid, *PROMPT]), pooling)


def test_token_types_follow_from_where_second_texts_start():
    bench = Bench(num_pages=64, max_num_batched_tokens=128)
    starts = {1: 3, 2: 0, 3: 29}
    poolings = {uid: Pooling("classify", way="cls", is_whole=True, second_start=start) for uid, start in starts.items()}
    bench.send(*(pooled(uid, PROMPT, pooling) for uid, pooling in poolings.items()))
    batch = bench.plan()
    assert batch is not None
    types = [int(0 < start <= position) for start in starts.values() for position in range(30)]
    assert unpack_int32(read_types(batch)).tolist() == types
    assert unpack_int32(read_types(slice_rows(batch, 2, 3))).tolist() == types[60:]
    assert read_types(slice_rows(batch, 1, 2)) == b""
