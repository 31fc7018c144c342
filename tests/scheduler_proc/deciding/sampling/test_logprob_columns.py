"""Columns of logprobs: sliced, joined, and assigned to the right tokens."""

import math

from hypothesis import given
from hypothesis import strategies as st

from messages.columns import pack_float32, pack_int32
from messages.ring.steps import NO_TOKEN, LogprobColumns
from scheduler_proc.deciding.sampling.logprob_columns import cut, has_nan, join, with_num_top
from tests.scheduler_proc.clients import Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_logprobs, expected_output, unpack_logprobs


def columns(num_tokens: int, num_top: int, first: int = 0) -> LogprobColumns:
    """Returns columns in which every value is another one."""
    places = range(num_tokens * num_top)
    return LogprobColumns(
        pack_int32(first + token for token in range(num_tokens)),
        pack_float32(-first - token for token in range(num_tokens)),
        num_top,
        pack_int32(100 * first + place for place in places),
        pack_float32(-100 * first - place for place in places),
    )


@given(st.integers(0, 6), st.integers(0, 4), st.data())
def test_parts_that_are_joined_are_the_whole(num_tokens, num_top, data):
    whole = columns(num_tokens, num_top)
    middle = data.draw(st.integers(0, num_tokens))
    assert join([cut(whole, 0, middle), cut(whole, middle, num_tokens)], num_top) == whole


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_fewer_alternatives_are_the_first_and_more_are_filled_up(num_tokens, old, new):
    got = with_num_top(columns(num_tokens, old), new)
    assert got.num_top == new
    before = unpack_logprobs(columns(num_tokens, old), old)
    filler = [(NO_TOKEN, -math.inf)] * max(0, new - old)
    assert unpack_logprobs(got, new) == [(token, logprob, top[:new] + filler) for token, logprob, top in before]


def test_what_is_not_a_number_is_found():
    assert not has_nan(columns(3, 1))
    assert not has_nan(LogprobColumns(pack_int32([1]), pack_float32([-math.inf]), 0, b"", b""))
    unknown = LogprobColumns(pack_int32([NO_TOKEN]), pack_float32([math.nan]), 0, b"", b"")
    assert has_nan(join([columns(3, 1), unknown, columns(3, 1)], 1))


def test_each_request_gets_its_own_logprobs_in_mixed_steps():
    bench = Bench(num_pages=200, max_num_seqs=32, max_num_batched_tokens=24)
    wants = {uid: (None, 0, 3, 1)[uid % 4] for uid in range(12)}
    prompts = {uid: [(uid + place) % 50 for place in range(1 + 3 * uid)] for uid in wants}
    for uid, num_logprobs in wants.items():
        bench.send(user_msg(uid, prompts[uid], 10, ignore_eos=True, num_logprobs=num_logprobs))
        bench.step()
    bench.run()
    for uid, num_top in wants.items():
        tokens = prompts[uid] + expected_output(
            prompts[uid], user_msg(0, [], 10, ignore_eos=True).sampling_params, 50, 64
        )
        expected = [] if num_top is None else expected_logprobs(tokens, len(prompts[uid]), num_top, 50)
        assert bench.inbox.logprobs[uid, 0] == expected


def test_logprobs_stay_with_their_rows_where_one_fails():
    bench = Bench(num_pages=200)
    prompts = {uid: [uid, 30 + uid] for uid in range(5)}
    bench.send(*(user_msg(uid, ids, 6, ignore_eos=True, num_logprobs=uid) for uid, ids in prompts.items()))
    bench.runner.nan = {32}
    bench.step()
    bench.runner.nan = set()
    bench.run()
    assert bench.end(2).finish_reason == "error"
    assert bench.inbox.logprobs[2, 0] == []
    for uid in (0, 1, 3, 4):
        tokens = prompts[uid] + bench.output(uid)
        assert bench.inbox.logprobs[uid, 0] == expected_logprobs(tokens, 2, uid, 50)
