"""Which rows need what: a plan names only what some row asks for."""

from typing import Any

import msgspec
import numpy as np
import pytest

from messages.columns import pack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import PromptLogprobTargets
from scheduler_proc.computing.sampling.filters import ALL_TOKENS
from scheduler_proc.computing.sampling.plan import SamplingPlan, plan_sampling
from tests.scheduler_proc.computing.sampling.row_processing import RowProcessing, plan_logits_processing
from tests.scheduler_proc.computing.sampling.sampling_batch import make_batch

VOCAB_SIZE = 300
GREEDY, WARM = SamplingParams(1, temperature=0.0), SamplingParams(1, temperature=0.7, seed=5)
TOP_K, MIN_P = SamplingParams(1, top_k=9, seed=6), SamplingParams(1, min_p=0.1, seed=7)


def plan(params: list[SamplingParams], processing: list[RowProcessing] | None = None) -> SamplingPlan:
    batch = make_batch(params, [100 + row for row in range(len(params))])
    return plan_sampling(
        msgspec.structs.replace(batch, logits_processing=plan_logits_processing(processing or [], VOCAB_SIZE)),
        VOCAB_SIZE,
    )


def test_greedy_rows_send_nothing() -> None:
    made = plan([GREEDY] * 3)
    assert (made.num_special, made.columns) == (0, {})


def test_rows_with_a_temperature_are_drawn_among_all_rows() -> None:
    made = plan([GREEDY, WARM])
    assert set(made.columns) == {"temperatures", "seeds", "positions"}
    np.testing.assert_array_equal(made.columns["temperatures"], np.float32([0.0, 0.7]))
    assert (made.columns["seeds"][1], made.columns["positions"][1]) == (5, 101)


@pytest.mark.parametrize("params", [SamplingParams(1, top_k=VOCAB_SIZE), SamplingParams(1, top_k=0, top_p=1.0)])
def test_a_filter_that_takes_nothing_out_is_none(params: SamplingParams) -> None:
    assert plan([params]).num_special == 0


@pytest.mark.parametrize(
    "number",
    [{"top_n_sigma": 1.0}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9}, {"xtc_probability": 0.5}],
)
def test_any_filter_alone_makes_its_row_special(number: dict[str, Any]) -> None:
    assert plan([WARM, msgspec.structs.replace(WARM, **number)]).columns["special_rows"].tolist() == [1]


def test_special_rows_are_ordered_and_drawn_once() -> None:
    bias = RowProcessing(biases=((3, 1.0),))
    made = plan(
        [GREEDY, TOP_K, WARM, MIN_P, WARM, GREEDY],
        [bias, bias, RowProcessing(), RowProcessing(), RowProcessing(), RowProcessing()],
    )
    columns = made.columns
    assert columns["special_rows"].tolist() == [3, 1, 0]
    assert (made.num_special, made.num_unprocessed, made.num_drawn) == (3, 1, 2)
    np.testing.assert_array_equal(columns["temperatures"], np.float32([0, 0, 0.7, 0, 0.7, 0]))
    assert columns["special_seeds"].tolist() == [7, 6]
    assert (columns["top_places"].tolist(), columns["top_top_ks"].tolist()) == ([1], [9])
    assert columns["min_p_places"].tolist() == [0]
    # The biases of rows 0 and 1, whose copies are the second and the first of those that are processed.
    assert columns["bias_rows"].tolist() == [1, 0]


def test_rows_of_filters_that_are_applied_while_drawing_come_first_with_all_their_numbers() -> None:
    """Rows that also use another filter come later."""
    made = plan([SamplingParams(1, top_k=4, typical_p=0.5), TOP_K, GREEDY, MIN_P])
    assert made.columns["special_rows"].tolist() == [1, 3, 0]
    assert (made.num_one_read, made.num_unprocessed) == (2, 3)
    assert made.columns["one_read_top_ks"].tolist() == [9, ALL_TOKENS]
    assert made.columns["one_read_top_ps"].tolist() == [1.0, 1.0]
    assert made.columns["one_read_min_ps"].tolist() == pytest.approx([0.0, MIN_P.min_p])
    assert plan([WARM, GREEDY]).num_one_read == 0


def test_rows_and_prompt_tokens_with_logprobs() -> None:
    targets = PromptLogprobTargets(token_indices=pack_int32([0, 1]), target_ids=pack_int32([7, 8]), num_top=2)
    batch = make_batch([GREEDY] * 3, [1, 2, 3])
    batch = msgspec.structs.replace(batch, num_logprobs=pack_int32([-1, 0, 4]), prompt_logprobs=targets)
    made = plan_sampling(batch, VOCAB_SIZE)
    assert (made.num_top, made.num_prompt_top) == (4, 2)
    assert {name: column.tolist() for name, column in made.columns.items()} == {
        "logprob_rows": [1, 2],
        "prompt_ids": [7, 8],
    }


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_a_token_outside_of_the_vocabulary_is_refused(token: int) -> None:
    for one in (RowProcessing(allowed_ids=(token,)), RowProcessing(presence=1.0, history=(token,))):
        with pytest.raises(AssertionError, match="outside of the vocabulary"):
            plan([GREEDY], [one])
