"""Edits of logits against transformers where it has them, and against plain Python."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.ring.requests import SamplingParams
from messages.ring.steps import LogitsProcessing
from scheduler_proc.computing.backends.cpu.forward_passes import copy_columns
from scheduler_proc.computing.sampling.logits_processing import expand_logits_processing, fill_histories, process_logits
from tests.scheduler_proc.computing.sampling.row_processing import (
    RowProcessing,
    plan_logits_processing,
    processed_logits,
)
from tests.scheduler_proc.computing.sampling.sampling_batch import choose, make_batch
from tests.scheduler_proc.computing.sampling.test_sampler import (
    NUM_DRAWS,
    VOCAB_SIZE,
    chi_square_p_value,
    make_logits,
    warped_probabilities,
    with_seed,
)

INF = math.inf
GREEDY = SamplingParams(1, temperature=0.0)


def chosen(logits: torch.Tensor, rows: list[RowProcessing], params: list[SamplingParams]) -> list[int]:
    batch = make_batch(params, [5 + 3 * row for row in range(len(params))])
    return choose(
        logits, msgspec.structs.replace(batch, logits_processing=plan_logits_processing(rows, logits.shape[1]))
    ).tolist()


def token_ids(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 39), max_size=most).map(tuple)


@st.composite
def row_processing(draw: st.DrawFn) -> RowProcessing:
    values = st.sampled_from([-100.0, -1.5, 0.25, 3.0, 100.0, -INF])
    history = draw(token_ids(30))
    return RowProcessing(
        allowed_ids=draw(st.none() | token_ids(6)),
        grammar_ids=draw(st.none() | token_ids(30)),
        biases=tuple(draw(st.lists(st.tuples(st.integers(0, 39), values), max_size=6))),
        repetition=draw(st.sampled_from([1.0, 0.5, 1.3, 4.0])),
        frequency=draw(st.sampled_from([0.0, -2.0, 0.5, 2.0])),
        presence=draw(st.sampled_from([0.0, -2.0, 0.5, 2.0])),
        history=history,
        num_prompt=draw(st.integers(0, len(history))),
    )


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(row_processing(), min_size=1, max_size=5), seed=st.integers(0, 1 << 30), data=st.data())
def test_every_row_is_processed_as_in_plain_python(rows: list[RowProcessing], seed: int, data: st.DataObject) -> None:
    """Rows may lie in any order in the copy; a history may lack its last token, which the step before samples."""
    logits = torch.randn(len(rows), 40, generator=torch.Generator().manual_seed(seed)) * 3
    expected = [processed_logits(logits[index].tolist(), row) for index, row in enumerate(rows)]
    places = np.array(data.draw(st.permutations(range(len(rows)))), dtype=np.int64)
    copy = torch.empty_like(logits)
    copy[torch.from_numpy(places)] = logits
    sources, last_tokens = np.full(len(rows), -1, np.int32), torch.full((len(rows) + 2,), -1, dtype=torch.int32)
    reported = list(rows)
    for index, row in enumerate(rows):
        if row.history and data.draw(st.booleans()):
            sources[index] = len(rows) - index
            last_tokens[len(rows) - index] = row.history[-1]
            reported[index] = dataclasses.replace(row, history=(*row.history[:-1], 0))
    processing = plan_logits_processing(reported, 40)
    if processing is not None:
        columns = copy_columns(expand_logits_processing(processing, places, sources, copy.shape[1]))
        fill_histories(columns, last_tokens)
        process_logits(copy, columns)
    ours = copy[torch.from_numpy(places)]
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-5, atol=1e-4)
    tokens = chosen(logits, rows, [GREEDY] * len(rows))
    for token, row in zip(tokens, ours, strict=True):
        assert token == (int(row.argmax()) if bool((row > -INF).any()) else -1)


HISTORY = tuple(range(0, 60, 2)) * 2
PROCESSED = [
    (RowProcessing(repetition=1.5, history=HISTORY, num_prompt=30), transformers.RepetitionPenaltyLogitsProcessor(1.5)),
    (RowProcessing(repetition=0.7, history=HISTORY, num_prompt=60), transformers.RepetitionPenaltyLogitsProcessor(0.7)),
    (
        RowProcessing(biases=((7, 4.0), (8, -4.0), (9, -INF))),
        transformers.SequenceBiasLogitsProcessor({(7,): 4.0, (8,): -4.0, (9,): -INF}),
    ),
    (RowProcessing(biases=((5, -INF), (6, -INF))), transformers.NoBadWordsLogitsProcessor([[5], [6]], eos_token_id=2)),
    (
        RowProcessing(biases=((2, -INF),)),
        transformers.MinNewTokensLengthLogitsProcessor(len(HISTORY), 10, eos_token_id=2),
    ),
]


@pytest.mark.parametrize("params", [SamplingParams(1), SamplingParams(1, temperature=0.8, top_k=60, top_p=0.9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("row", "processor"), PROCESSED)
def test_draws_follow_the_probabilities_of_transformers(
    row: RowProcessing, processor: "transformers.LogitsProcessorList", dtype: torch.dtype, params: SamplingParams
) -> None:
    logits = make_logits(dtype)
    processed = processor(torch.tensor([HISTORY]), logits.float())
    seeds = [with_seed(params, seed) for seed in range(NUM_DRAWS)]
    tokens = chosen(logits.expand(NUM_DRAWS, -1), [row] * NUM_DRAWS, seeds)
    assert chi_square_p_value(torch.tensor(tokens), warped_probabilities(processed, params)) > 1e-3
    assert chosen(logits, [row], [GREEDY]) == [int(processed.argmax())]


def mixed_rows() -> tuple[list[RowProcessing], list[SamplingParams]]:
    """Greedy and drawn rows with all kinds of processing and with none."""
    everything = RowProcessing(
        allowed_ids=tuple(range(5, 200)),
        grammar_ids=tuple(range(3, 300, 3)),
        biases=((6, 3.0), (6, 1.0), (10, -INF)),
        repetition=1.3,
        frequency=0.5,
        presence=-0.5,
        history=HISTORY,
        num_prompt=20,
    )
    kinds = [
        RowProcessing(),
        everything,
        RowProcessing(allowed_ids=(1, 2, 299)),
        RowProcessing(grammar_ids=(1, 2, 32, 299)),
        RowProcessing(biases=((0, 7.5), (299, 7.0))),
        RowProcessing(repetition=2.0, history=HISTORY, num_prompt=60),
        RowProcessing(frequency=1.5, history=HISTORY),
        RowProcessing(presence=2.0, history=HISTORY, num_prompt=10),
    ]
    ways = [
        GREEDY,
        SamplingParams(1, temperature=0.9, seed=4),
        SamplingParams(1, temperature=1.3, top_k=50, top_p=0.9, min_p=0.01, seed=-8),
    ]
    return [kind for kind in kinds for _ in ways], ways * len(kinds)


def test_a_row_chooses_the_same_alone_and_in_any_batch() -> None:
    rows, params = mixed_rows()
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
    batch = make_batch(params, list(range(len(rows))))
    together = choose(
        logits, msgspec.structs.replace(batch, logits_processing=plan_logits_processing(rows, VOCAB_SIZE))
    )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(5)).tolist()
    shuffled = make_batch([params[i] for i in order], order)
    processing = plan_logits_processing([rows[i] for i in order], VOCAB_SIZE)
    assert torch.equal(
        choose(logits[order], msgspec.structs.replace(shuffled, logits_processing=processing)), together[order]
    )
    for index, row in enumerate(rows):
        alone = msgspec.structs.replace(
            make_batch([params[index]], [index]), logits_processing=plan_logits_processing([row], VOCAB_SIZE)
        )
        assert int(choose(logits[index : index + 1], alone)) == int(together[index])


def test_rows_without_processing_choose_as_in_a_batch_without_any() -> None:
    rows, params = mixed_rows()
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
    plain, processed = (
        chosen(logits, [RowProcessing()] * len(rows), params),
        chosen(logits, rows, params),
    )
    is_plain = [not row.has_any for row in rows]
    assert [token for token, same in zip(plain, is_plain, strict=True) if same] == processed[: sum(is_plain)]
    assert plain != processed


def test_processing_without_effect_change_nothing() -> None:
    rows, params = mixed_rows()
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    nothing = RowProcessing(
        tuple(range(VOCAB_SIZE)),
        grammar_ids=tuple(range(VOCAB_SIZE)),
        biases=((3, 0.0),),
        frequency=0.25,
        history=(1, 2),
        num_prompt=2,
    )
    assert chosen(logits, [nothing] * len(rows), params) == chosen(logits, [RowProcessing()] * len(rows), params)
    batch = make_batch(params, [1] * len(params))
    empty = msgspec.structs.replace(batch, logits_processing=LogitsProcessing())
    assert torch.equal(choose(logits, empty), choose(logits, batch))


@pytest.mark.parametrize(
    "banned",
    [
        RowProcessing(allowed_ids=()),
        RowProcessing(grammar_ids=()),
        RowProcessing(allowed_ids=(3, 4), grammar_ids=(5, 6)),
        RowProcessing(allowed_ids=(3, 4), biases=((3, -INF), (4, -INF))),
        RowProcessing(biases=tuple((token, -INF) for token in range(VOCAB_SIZE)), repetition=1.2, history=(1, 2)),
    ],
    ids=["none allowed", "none by the grammar", "none by both", "the allowed banned", "all banned"],
)
def test_a_row_whose_tokens_are_all_banned_has_no_token_and_the_others_keep_theirs(banned: RowProcessing) -> None:
    rows, params = mixed_rows()
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    target = chosen(logits, rows, params)
    for index in range(6):
        changed = [*rows[:index], banned, *rows[index + 1 :]]
        assert chosen(logits, changed, params) == [*target[:index], -1, *target[index + 1 :]]


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_a_processed_row_that_is_not_finite_has_no_token(bad: float) -> None:
    """Even if processing removes the token that is not finite: the model's output cannot be trusted."""
    rows, params = mixed_rows()
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    target = chosen(logits, rows, params)
    for index in range(len(rows)):
        poisoned = logits.clone()
        poisoned[index, 2] = bad
        assert chosen(poisoned, rows, params) == [*target[:index], -1, *target[index + 1 :]]


def test_a_penalty_that_makes_a_logit_infinite_leaves_the_row_without_a_token() -> None:
    logits = torch.tensor([[5.0, 1.0], [5.0, 1.0]])
    rows = [RowProcessing(repetition=1e-39, history=(0,)), RowProcessing(repetition=1e-30, history=(1,))]
    assert chosen(logits, rows, [GREEDY] * 2) == [-1, 1]


@pytest.mark.parametrize(
    "row",
    [
        RowProcessing(biases=((VOCAB_SIZE, 1.0),)),
        RowProcessing(allowed_ids=(-1,)),
        RowProcessing(presence=1.0, history=(300,)),
    ],
)
def test_an_id_outside_of_the_vocabulary_is_a_bug_and_changes_no_other_row(row: RowProcessing) -> None:
    with pytest.raises(AssertionError, match="outside of the vocabulary"):
        chosen(torch.randn(3, VOCAB_SIZE), [row, RowProcessing(), RowProcessing()], [GREEDY] * 3)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(1, seed=3)])
def test_the_logits_themselves_stay(params: SamplingParams) -> None:
    """Logprobs are taken of them afterwards."""
    logits = torch.randn(2, VOCAB_SIZE)
    before = logits.clone()
    chosen(logits, [RowProcessing(biases=((1, 9.0),)), RowProcessing(allowed_ids=(4,))], [params] * 2)
    assert torch.equal(logits, before)
