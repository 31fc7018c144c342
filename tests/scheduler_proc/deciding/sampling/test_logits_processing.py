"""Logits processing as columns of steps and parts of steps, and over whole requests."""

import math
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.columns import pack_float32, pack_int32, unpack_int32
from messages.ring.requests import AbortMsg, SamplingParams
from messages.ring.steps import LogitsProcessing
from scheduler_proc.deciding.isolation import slice_rows
from scheduler_proc.deciding.sampling.logits_processing import LogitsProcessingColumns, find_logits_processors
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.plain_steps import plain_step
from tests.scheduler_proc.simulated_edits import expected_edits, read_edits
from tests.scheduler_proc.simulated_runner import expected_output

INFINITY = math.inf
IDS = st.integers(0, VOCAB_SIZE - 1)
FEW_IDS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


def columns_of(*rows: tuple[SamplingParams, list[int], int]) -> LogitsProcessing | None:
    """Returns the columns of rows, each with its tokens so far and how many of them are the prompt."""
    columns = LogitsProcessingColumns()
    for row, (params, token_ids, num_prompt_tokens) in enumerate(rows):
        edits = find_logits_processors(params, (EOS,), VOCAB_SIZE)
        if edits is not None:
            num_output_tokens = len(token_ids) - num_prompt_tokens
            columns.add(row, edits, array("i", token_ids), num_prompt_tokens, num_output_tokens)
    return columns.columns()


def biases_of(params: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> list[tuple[int, float]]:
    edits = columns_of((params, token_ids, num_prompt_tokens))
    if edits is None:
        return []
    return list(zip(unpack_int32(edits.bias_ids), array("f", edits.bias_values), strict=True))


def test_who_changes_nothing_has_no_columns():
    assert (
        find_logits_processors(SamplingParams(8, temperature=0.3, top_k=4, num_logprobs=3), (EOS,), VOCAB_SIZE) is None
    )
    assert columns_of((SamplingParams(8), [1, 2], 1)) is None


def test_a_bad_word_of_one_token_is_always_banned():
    params = SamplingParams(8, bad_word_ids=(pack_int32([3]), pack_int32([4])))
    assert biases_of(params, [1], 1) == [(3, -INFINITY), (4, -INFINITY)]


@pytest.mark.parametrize(
    ("token_ids", "num_prompt_tokens", "banned"),
    [
        ([1, 5, 6], 1, [7]),
        ([5, 6], 0, [7]),
        ([5, 6], 1, []),
        ([5, 6], 2, []),
        ([6], 1, []),
        ([5, 6, 1], 1, []),
        ([6, 6], 0, [8]),
        ([6, 6], 1, []),
        ([5, 6, 6], 1, [8]),
    ],
)
def test_a_longer_bad_word_bans_its_end_after_its_beginning(token_ids, num_prompt_tokens, banned):
    params = SamplingParams(8, bad_word_ids=(pack_int32([5, 6, 7]), pack_int32([6, 6, 8])))
    assert biases_of(params, token_ids, num_prompt_tokens) == [(token_id, -INFINITY) for token_id in banned]


def test_end_tokens_are_banned_until_there_are_min_tokens_also_where_they_would_not_end():
    params = SamplingParams(8, min_tokens=2, stop_token_ids=(4, 10_000, -1), ignore_eos=True)
    expected = [(4, -INFINITY), (EOS, -INFINITY)]
    assert biases_of(params, [1, 2, 3], 3) == biases_of(params, [1, 2, 3], 2) == expected
    assert biases_of(params, [1, 2, 3], 1) == []


def test_history_is_the_prompt_and_the_output():
    params = SamplingParams(8, repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=-2.0)
    edits = columns_of((SamplingParams(8), [1], 1), (params, [1, 2, 3], 2), (params, [4], 1))
    assert edits is not None
    assert list(unpack_int32(edits.penalty_rows)) == [1, 2]
    assert list(unpack_int32(edits.history_ids)) == [1, 2, 3, 4]
    assert list(unpack_int32(edits.num_history)) == [3, 1]
    assert list(unpack_int32(edits.num_history_prompt)) == [2, 1]
    assert list(array("f", edits.repetition_penalties)) == [1.5, 1.5]
    assert list(array("f", edits.frequency_penalties)) == [0.25, 0.25]
    assert list(array("f", edits.presence_penalties)) == [-2, -2]


def taken(edits: LogitsProcessing, start: int, stop: int) -> LogitsProcessing | None:
    """Returns the changes of some rows of a step."""
    return slice_rows(plain_step(6, logits_processing=edits), start, stop).logits_processing


@st.composite
def rows(draw: st.DrawFn) -> tuple[SamplingParams, list[int], int]:
    bias_ids = draw(st.lists(IDS, max_size=3, unique=True))
    params = SamplingParams(
        max_tokens=8,
        allowed_token_ids=pack_int32(draw(st.lists(IDS, max_size=3, unique=True))),
        bad_word_ids=tuple(pack_int32(ids) for ids in draw(st.lists(FEW_IDS, max_size=4))),
        bias_ids=pack_int32(bias_ids),
        bias_values=pack_float32(draw(st.floats(-100, 100, width=32)) for _ in bias_ids),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3])),
        stop_token_ids=tuple(draw(st.lists(IDS, max_size=2))),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -2.0])),
    )
    token_ids = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    return params, token_ids, draw(st.integers(1, len(token_ids)))


@given(st.lists(rows(), max_size=6), st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_columns_and_parts_of_them_report_what_the_requests_report(asks, start, stop):
    edits = columns_of(*asks)
    got = read_edits(edits)
    for row, (params, token_ids, num_prompt_tokens) in enumerate(asks):
        expected = expected_edits(params, token_ids, num_prompt_tokens, (EOS,))
        assert got.get(row, expected_edits(SamplingParams(1), [1], 1, ())) == expected
    if edits is not None and start <= stop:
        part = read_edits(taken(edits, start, stop))
        assert part == {row - start: each for row, each in got.items() if start <= row < stop}
        assert taken(edits, 0, 6) == edits


PROMPT = [3, 1, 4, 1, 5]
KINDS: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_token_ids": pack_int32(range(20, 30))},
    "bias": {"bias_ids": pack_int32([1, 2]), "bias_values": pack_float32([3.0, -100.0])},
    "bad words": {"bad_word_ids": tuple(pack_int32([3, token_id]) for token_id in range(40))},
    "min_tokens": {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": tuple(range(40))},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_known", [0, 3])
def test_a_whole_request_is_changed_through_preemption_and_continuation(kind, num_known):
    params = {"temperature": 0.8, "seed": 3, "ignore_eos": True} | KINDS[kind]
    message = user_msg(1, PROMPT, max_tokens=40, **params)
    expected = expected_output(PROMPT, message.sampling_params, VOCAB_SIZE, 64, (EOS,))
    plain = {"temperature": 0.8, "seed": 3, "ignore_eos": True}
    assert expected != expected_output(PROMPT, user_msg(1, [], 40, **plain).sampling_params, VOCAB_SIZE, 64)
    bench = Bench(num_pages=16, max_num_batched_tokens=64)
    bench.send(user_msg(2, [2] * 20, max_tokens=30, ignore_eos=True))
    known = expected[:num_known]
    bench.send(user_msg(1, PROMPT, 40, attempt=1, output_ids=known, **params))
    bench.run()
    assert known + bench.output(1, 1) == expected
    assert bench.gauge("preemptions") or len(expected) < 12


def test_min_tokens_are_really_there_before_the_end():
    params = {"min_tokens": 9, "stop_token_ids": tuple(range(30))}
    bench = Bench()
    bench.send(user_msg(1, PROMPT, max_tokens=60, **params))
    bench.run()
    assert all(token_id >= 30 for token_id in bench.output(1)[:9])
    assert len(bench.output(1)) > 9
    assert bench.output(1)[-1] < 30
    assert bench.end(1).finish_reason == "stop"


def test_a_step_carries_columns_only_while_a_row_changes_something():
    bench = Bench()
    bench.send(user_msg(1, PROMPT, 40, ignore_eos=True), user_msg(2, PROMPT, 40, ignore_eos=True, min_tokens=3))
    bench.send(user_msg(3, [9], 40, ignore_eos=True, presence_penalty=1.0))
    for _ in range(5):
        bench.step()
    assert [batch.logits_processing is None for batch in bench.runner.batches] == [False] * 5
    assert (
        read_edits(bench.runner.batches[-1].logits_processing).keys() == {1} or bench.runner.batches[-1].num_sampled < 3
    )
    bench.send(AbortMsg(3, 0))
    bench.step()
    assert bench.runner.batches[-1].logits_processing is None
    assert bench.runner.batches[-1].num_logprobs == b""
    assert bench.runner.batches[-1].prompt_logprobs is None


@pytest.mark.parametrize("num_known", [0, 1])
def test_a_request_that_bans_all_that_it_allows_is_notified_so_and_others_continue(num_known):
    word = pack_int32([8, 8])
    bench = Bench()
    bench.send(user_msg(2, PROMPT, 9, ignore_eos=True))
    bench.send(user_msg(1, [1], 9, output_ids=[8] * num_known, allowed_token_ids=pack_int32([8]), bad_word_ids=(word,)))
    bench.run()
    error = bench.end(1).error
    assert error is not None
    assert (error.status, error.param) == (400, "allowed_token_ids")
    assert bench.output(1) == [8] * (1 - num_known)
    assert bench.end(1).usage.completion_tokens == 1
    assert len(bench.output(2)) == 9


def test_the_choices_of_a_request_share_what_its_bad_words_become():
    words = tuple(pack_int32([token_id, token_id + 1]) for token_id in range(3, 9))
    choices = [
        find_logits_processors(
            SamplingParams(5, seed=seed, bad_word_ids=tuple(map(bytes, map(bytearray, words)))), [], 99
        )
        for seed in range(3)
    ]
    shared = {id(processors.words) for processors in choices if processors is not None}
    assert len(shared) == 1
    assert all(processors and len(processors.words) == len(words) for processors in choices)
