"""One plan determines the results of a step, on the device and on the host."""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from messages.columns import pack_int32, unpack_float32, unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch, LogprobColumns, PromptLogprobTargets
from scheduler_proc.computing.backends.cpu.forward_passes import copy_columns
from scheduler_proc.computing.sampling.plan import GREEDY, SamplingPlan, plan_sampling
from scheduler_proc.computing.sampling.results import Forwarded, Result, compute_result, read_result
from tests.scheduler_proc.computing.sampling.sampling_batch import make_batch

VOCAB_SIZE, HIDDEN_SIZE = 30, 8
ROWS = [SamplingParams(1, temperature=0.0), SamplingParams(1, temperature=0.8, seed=3), SamplingParams(1, top_k=4)]
PROMPT_IDS = [7, 0, 29]


@dataclass
class Config:
    vocab_size: int = VOCAB_SIZE


class Head:
    """A decoder of which only the head is asked for anything."""

    model = Config()

    def __init__(self) -> None:
        self.weight_VE = torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=torch.Generator().manual_seed(1))

    def logits(self, hidden_NE: Tensor, _out: Tensor | None = None, _slots: Tensor | None = None) -> Tensor:
        return hidden_NE @ self.weight_VE.T


def plan(num_logprobs: bytes = b"", has_prompt_logprobs: bool = False) -> SamplingPlan:
    batch = make_batch(ROWS, range(len(ROWS)))
    targets = PromptLogprobTargets(pack_int32(range(3)), pack_int32(PROMPT_IDS), 2) if has_prompt_logprobs else None
    return plan_sampling(msgspec.structs.replace(batch, num_logprobs=num_logprobs, prompt_logprobs=targets), VOCAB_SIZE)


def compute(made: SamplingPlan, plain: np.ndarray | None = None) -> Result:
    head: Any = Head()
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(len(ROWS), VOCAB_SIZE, generator=generator)
    hidden = torch.randn(len(PROMPT_IDS), HIDDEN_SIZE, generator=generator)
    return compute_result(head, Forwarded(logits, hidden, copy_columns(made.columns), plain), made)


def ids_of(columns: LogprobColumns | None) -> list[int] | None:
    return None if columns is None else list(unpack_int32(columns.token_ids))


@pytest.mark.parametrize("num_logprobs", [b"", pack_int32([-1, 3, 0])], ids=["no row", "two rows"])
@pytest.mark.parametrize("has_prompt_logprobs", [False, True])
def test_each_field_gets_what_was_computed_for_it(num_logprobs: bytes, has_prompt_logprobs: bool) -> None:
    made = plan(num_logprobs, has_prompt_logprobs)
    output = read_result(5, made, compute(made))
    tokens = list(unpack_int32(output.next_tokens))
    assert (output.step_id, len(tokens)) == (5, len(ROWS))
    assert ids_of(output.logprobs) == (tokens[1:] if num_logprobs else None)
    assert ids_of(output.prompt_logprobs) == (PROMPT_IDS if has_prompt_logprobs else None)
    for columns, num_top in ((output.logprobs, 3), (output.prompt_logprobs, 2)):
        if columns is not None:
            assert columns.num_top == num_top
            assert len(unpack_float32(columns.top_logprobs)) == num_top * len(unpack_float32(columns.logprobs))


def test_tokens_do_not_depend_on_what_else_is_requested() -> None:
    plain, rich = (read_result(1, made, compute(made)) for made in (plan(), plan(pack_int32([2, 2, 2]), True)))
    assert plain.next_tokens == rich.next_tokens


def test_tokens_that_the_host_has_are_the_result_of_plain_rows() -> None:
    plain = np.array([3, -1, 2], dtype=np.int64)
    result = compute(GREEDY, plain)
    assert result is plain
    assert list(unpack_int32(read_result(1, GREEDY, result).next_tokens)) == [3, -1, 2]


def test_known_tokens_stay_as_they_are_where_more_is_requested() -> None:
    """They lie in memory that a capture writes."""
    batch: Batch = make_batch(ROWS[:1] * 3, range(3))
    made = plan_sampling(msgspec.structs.replace(batch, num_logprobs=pack_int32([0, -1, 0])), VOCAB_SIZE)
    plain = np.array([3, 1, 2], dtype=np.int64)
    output = read_result(1, made, compute(made, plain))
    assert list(unpack_int32(output.next_tokens)) == [3, 1, 2]
    assert ids_of(output.logprobs) == [3, 2]
    assert plain.tolist() == [3, 1, 2]
