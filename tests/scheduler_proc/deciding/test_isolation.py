"""A step that raises fails only the rows at fault."""

import logging
import random
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from messages.columns import num_int32, pack_float32, pack_int32, pack_int64, unpack_int32, unpack_int64
from messages.ring.steps import ForwardOutput
from scheduler_proc.deciding.isolation import MAX_RERUNS, join_outputs, run_step, slice_rows
from tests.scheduler_proc.clients import VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import check_shapes, expected_logprobs, expected_output, unpack_logprobs

POISON = VOCAB_SIZE - 1


def params_of(uid: int, is_rich: bool) -> dict[str, Any]:
    """Returns parameters of which each column that a step may lack is full for some rows and empty for others."""
    if not is_rich:
        return {"ignore_eos": True}
    return {
        "ignore_eos": True,
        "num_logprobs": (None, 0, 3, 1)[uid % 4],
        "num_prompt_logprobs": (None, 2, 0)[uid % 3],
        "allowed_token_ids": pack_int32(range(uid, uid + 20)) if uid % 5 == 1 else b"",
        "bias_ids": pack_int32([uid] * (uid % 3)),
        "bias_values": pack_float32([uid / 4] * (uid % 3)),
        "presence_penalty": 0.5 * (uid % 4 == 2),
    }


def mixed_bench(num_rows: int = 8, seed: int = 1, is_rich: bool = False) -> tuple[Bench, dict[int, list[int]]]:
    """Returns a scheduler with half of the requests in DECODE and prompts for the rest, none with the poison token."""
    chance = random.Random(seed)
    bench = Bench(num_pages=200, max_num_seqs=64, max_num_batched_tokens=40)
    prompts = {uid: [chance.randrange(POISON) for _ in range(chance.randrange(1, 20))] for uid in range(num_rows)}
    for uid, ids in prompts.items():
        bench.send(user_msg(uid, ids, max_tokens=12, **params_of(uid, is_rich)))
        if uid == num_rows // 2:
            bench.step()
    return bench, prompts


def isolated_step(bench: Bench) -> bool:
    batch = bench.scheduler.schedule()
    if batch is None:
        return False
    bench.scheduler.commit(*run_step(bench.runner.run, batch))
    bench.scheduler.check()
    bench.inbox.take(bench.scheduler.pop_replies())
    return True


@pytest.mark.parametrize("bad", [{3}, {0}, {7}, {1, 6}, {4, 5, 6}])
@pytest.mark.parametrize("is_rich", [False, True])
def test_only_the_poisoned_requests_fail(bad, is_rich, caplog):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench, prompts = mixed_bench(is_rich=is_rich)
    bench.runner.poison = {POISON}
    for uid in bad:
        bench.send(user_msg(100 + uid, [*prompts[uid], POISON], max_tokens=12, **params_of(uid, is_rich)))
    while isolated_step(bench):
        pass
    bench.check_idle()
    poisoned_alone = {uid for uid in prompts if bench.end(uid).finish_reason == "error"}
    for uid, ids in prompts.items():
        params = user_msg(0, [], max_tokens=12, **params_of(uid, is_rich)).sampling_params
        expected = expected_output(ids, params, VOCAB_SIZE, 64)
        if POISON in expected[:-1]:
            poisoned_alone.discard(uid)
            expected = expected[: expected.index(POISON) + 1]
        assert bench.output(uid) == expected
        if params.num_logprobs is not None:
            expected = expected_logprobs(ids + expected, len(ids), params.num_logprobs, VOCAB_SIZE)
            assert bench.inbox.logprobs[uid, 0] == expected
        if params.num_prompt_logprobs is not None:
            expected = expected_logprobs(ids, 1, params.num_prompt_logprobs, VOCAB_SIZE)
            assert bench.inbox.prompt_logprobs[uid, 0] == expected
    assert not poisoned_alone
    for uid in bad:
        assert bench.end(100 + uid).finish_reason == "error"
        assert bench.output(100 + uid) == []


def test_the_error_names_a_reference_that_is_in_the_log(caplog):
    bench = Bench()
    bench.runner.poison = {POISON}
    bench.send(user_msg(1, [1, POISON, 2]))
    isolated_step(bench)
    error = bench.end(1).error
    assert error is not None
    assert error.status == 500
    reference = error.message.partition("reference ")[2].rstrip(")")
    record = next(record for record in caplog.records if reference in record.getMessage())
    assert record.exc_info is not None
    assert "poisoned" not in error.message
    bench.run()


def test_a_device_that_is_gone_is_not_requested_ever(caplog):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = Bench(num_pages=600, max_num_seqs=256, max_num_batched_tokens=1024)
    bench.send(*(user_msg(uid, [uid % VOCAB_SIZE, uid // VOCAB_SIZE]) for uid in range(200)))
    bench.runner.poison = set(range(VOCAB_SIZE))
    assert isolated_step(bench)
    assert len(bench.runner.batches) <= MAX_RERUNS + 1
    assert {end.finish_reason for end in bench.inbox.finished.values()} == {"error"}
    assert len(bench.inbox.finished) == 200
    bench.check_idle()


@pytest.mark.parametrize("is_rich", [False, True])
def test_parts_of_a_step_give_what_the_whole_gives(is_rich):
    bench, _ = mixed_bench(12, is_rich=is_rich)
    batch = bench.scheduler.schedule()
    assert batch is not None
    assert batch.phase == "mixed"
    assert (
        (batch.logits_processing is not None)
        == (batch.prompt_logprobs is not None)
        == bool(batch.num_logprobs)
        == is_rich
    )
    whole = bench.runner.run(batch)
    num_rows = num_int32(batch.query_lens)
    for middle in range(1, num_rows):
        parts = slice_rows(batch, 0, middle), slice_rows(batch, middle, num_rows)
        for part in parts:
            check_shapes(part)
        assert same_results(join_outputs([bench.runner.run(part) for part in parts]), whole, batch.num_logprobs)
    assert slice_rows(batch, 0, num_rows) == batch
    assert list(unpack_int32(slice_rows(batch, 1, 2).query_lens)) == [1]


def same_results(left: ForwardOutput, right: ForwardOutput, num_logprobs: bytes) -> bool:
    """Compares as many alternatives as each row wants: a part may have fewer than the whole."""
    target = [count for count in unpack_int32(num_logprobs) if count >= 0]
    tops: list[object] = []
    for columns in (left.logprobs, right.logprobs):
        rows = [] if columns is None else unpack_logprobs(columns, columns.num_top)
        tops.append([(*row[:2], row[2][:count]) for row, count in zip(rows, target, strict=True)])
    same = left.next_tokens == right.next_tokens and left.prompt_logprobs == right.prompt_logprobs
    return same and tops[0] == tops[1]


def test_a_part_samples_for_its_own_rows():
    bench, _ = mixed_bench(12)
    batch = bench.scheduler.schedule()
    assert batch is not None
    ends = [end - 1 for end in accumulate(unpack_int32(batch.query_lens))]
    some = pack_int32(ends[row] for row in (1, 3, 4))
    samples_some = msgspec.structs.replace(batch, sample_tokens=some, seeds=pack_int64([10, 30, 40]))
    part = slice_rows(samples_some, 2, 4)
    assert list(unpack_int32(part.sample_tokens)) == [part.num_tokens - 1]
    assert list(unpack_int64(part.seeds)) == [30]
    assert slice_rows(samples_some, 2, 3).num_sampled == 0
