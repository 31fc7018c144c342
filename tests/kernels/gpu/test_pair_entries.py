"""The operations on (row, token) pairs: pairs that come many times, in any order."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.operations.add_biases import add_biases, add_biases_reference
from kernels.operations.allow_tokens import allow_tokens, allow_tokens_reference
from kernels.operations.penalize_occurrence import penalize_occurrence, penalize_occurrence_reference
from kernels.operations.penalize_repetition import penalize_repetition, penalize_repetition_reference

Columns = tuple[Tensor, ...]
NUM_ROWS = 4


def biases(rows: Tensor, ids: Tensor, values: Tensor) -> Columns:
    values[ids % 5 == 0] = float("-inf")
    return rows, ids, values


def repetition(rows: Tensor, ids: Tensor, values: Tensor) -> Columns:
    return rows, ids, torch.tensor([1.3, 0.5, 1.0, 4.0])[rows]


def occurrence(rows: Tensor, ids: Tensor, values: Tensor) -> Columns:
    return rows, ids, torch.tensor([0.1, -2.0, 0.0, 0.5])[rows], torch.tensor([0.0, 1.0, -0.3, 2.0])[rows]


def allowed(rows: Tensor, ids: Tensor, values: Tensor) -> Columns:
    return torch.tensor([0, 2, 3]), torch.tensor([0, 2, 2, 0])[rows], ids


OPERATIONS = {
    "add_biases": (add_biases, add_biases_reference, biases),
    "penalize_repetition": (penalize_repetition, penalize_repetition_reference, repetition),
    "penalize_occurrence": (penalize_occurrence, penalize_occurrence_reference, occurrence),
    "allow_tokens": (allow_tokens, allow_tokens_reference, allowed),
}


@pytest.mark.parametrize("num_entries", [0, 1, 300, 700])
@pytest.mark.parametrize("vocab_size", [1, 37, 5_003])
@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_its_reference(name: str, vocab_size: int, num_entries: int, device: str, backend: Counter[str]) -> None:
    launch: Callable[..., None]
    launch, reference, columns_of = OPERATIONS[name]
    generator = torch.Generator().manual_seed(vocab_size + num_entries)
    logits = (torch.randn(NUM_ROWS, vocab_size, generator=generator) * 3).to(device)
    rows = torch.randint(0, NUM_ROWS, (num_entries,), generator=generator)
    # Some tokens come often, some once, and row 1 has the last one.
    ids = torch.randint(0, vocab_size, (num_entries,), generator=generator).to(torch.int32)
    ids[::3] = vocab_size - 1
    columns = [c.to(device) for c in columns_of(rows, ids, torch.randn(num_entries, generator=generator))]
    expected = logits.clone()
    reference(expected, *columns)
    launch(logits, *columns)
    # A GPU adds and multiplies in one step, with one rounding.
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6 if device == "cuda" else 0)
    assert backend[name] == 1


def test_a_row_that_may_choose_nothing_has_nothing(device: str) -> None:
    logits = torch.zeros(2, 9, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    allow_tokens(logits, torch.tensor([1], device=device), none, none.int())
    assert logits.isfinite().tolist() == [[True] * 9, [False] * 9]
