"""The tokens drawn in one read, compared with copies that the reference filters and then draws."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.arguments.rows import RowDraws
from kernels.gpu import triton_kernels
from kernels.gpu.launch_table import find_launch
from kernels.operations.draw_filtered import draw_filtered, draw_filtered_reference
from kernels.operations.sample import NO_TOKEN

ALL, CANDIDATES = 1 << 30, 128
Filters = tuple[int, float, float]


def make_draws(filters: list[Filters], device: str, temperature: float = 1.0) -> RowDraws:
    top_ks, top_ps, min_ps = zip(*filters, strict=True)
    num_rows = len(filters)
    return RowDraws(
        torch.full((num_rows,), temperature, device=device),
        torch.arange(num_rows, device=device) - 3,
        torch.arange(num_rows, device=device) * 7,
        torch.tensor(top_ks, device=device),
        torch.tensor(top_ps, device=device),
        torch.tensor(min_ps, device=device),
    )


def assert_as_before(logits: Tensor, filters: list[Filters], temperature: float = 1.0) -> Tensor:
    """Row r of the draws is row r modulo S of the logits: a few logits, many draws of what is kept of them."""
    rows = torch.arange(len(filters), device=logits.device) % len(logits)
    draws = make_draws(filters, str(logits.device), temperature)
    tokens = draw_filtered(logits, rows, draws)
    loaded = dict(triton_kernels._loaded)
    triton_kernels._loaded.clear()
    try:
        expected = draw_filtered_reference(logits.cpu(), rows.cpu(), RowDraws(*(column.cpu() for column in draws)))
    finally:
        triton_kernels._loaded.update(loaded)
    assert (tokens.dtype, tokens.tolist()) == (torch.int32, expected.tolist())
    return tokens


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_table_lists_as_many_candidates_as_these_tests_suppose() -> None:
    assert find_launch("draw_filtered", 9_001)["CANDIDATES"] == CANDIDATES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_draws_what_is_drawn_from_filtered_copies(dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    """Sets of few tokens, over three parts of the vocabulary; one row's candidates are not enough for its top-k."""
    logits = (randn(2, 9_001) * 3).to(device, dtype)
    filters = [(5, 1.0, 0.0), (ALL, 0.9, 0.0), (50, 0.5, 0.0), (ALL, 1.0, 0.2), (40, 0.95, 0.05), (700, 1.0, 0.0)]
    tokens = assert_as_before(logits, filters, 0.7)
    assert backend["draw_filtered"] == 1
    assert len(set(tokens.tolist())) > 2


def test_rows_whose_candidates_are_not_enough_are_read_again(device: str) -> None:
    """Scores so flat that any token may be drawn that is kept: a set with another token shows in some row."""
    logits = (randn(1, 300, seed=1) * 0.1).to(device)
    more = CANDIDATES + 60
    kinds = [(more, 1.0, 0.0), (ALL, 0.9, 0.0), (more, 0.97, 0.0), (ALL, 1.0, 0.8), (CANDIDATES, 1.0, 0.0)]
    assert len(set(assert_as_before(logits, kinds * 2).tolist())) > 8


def test_equals_of_the_last_token_kept_stay_and_more_equals_than_candidates_are_found(device: str) -> None:
    logits = torch.zeros(2, 300, device=device)
    logits[0, 11], logits[1, :290] = 1.0, -4.0
    kinds: list[Filters] = [(2, 1.0, 0.0), (10, 1.0, 0.0), (1, 1.0, 0.0), (ALL, 0.6, 0.0)]
    tokens = assert_as_before(logits, kinds * 2)
    assert all(token >= 290 for token in tokens[1::4].tolist())
    assert tokens[2::4].tolist() == [11, 11]


@pytest.mark.parametrize("temperature", [1e-5, 1e6])
def test_extreme_temperatures(temperature: float, device: str) -> None:
    assert_as_before(randn(2, 300).to(device), [(20, 0.9, 0.0), (ALL, 0.9, 0.1)] * 2, temperature)


@pytest.mark.parametrize("vocab_size", [1, 2, 129, 4_097])
def test_vocabularies_of_any_size_of_rows_that_are_not_dense(vocab_size: int, device: str) -> None:
    logits = torch.full((3, vocab_size + 5), float("nan"), device=device)[:, :vocab_size]
    logits.copy_(randn(3, vocab_size))
    assert_as_before(logits, [(3, 1.0, 0.0), (ALL, 0.8, 0.0), (ALL, 1.0, 0.5)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_with_a_logit_that_is_not_finite_has_no_token(bad: float, device: str) -> None:
    logits = randn(2, 5_000).to(device)
    logits[0, 4_500] = bad
    tokens = assert_as_before(logits, [(10, 0.9, 0.0)] * 4)
    assert tokens[::2].tolist() == [NO_TOKEN] * 2
    assert NO_TOKEN not in tokens[1::2].tolist()


def test_a_vocabulary_beyond_the_candidates_of_one_program_is_drawn_from_copies(device: str) -> None:
    """Gemma's have a few tokens more than the kernel takes."""
    logits = randn(1, 262_145).to(device)
    none = torch.zeros(1, dtype=torch.int64, device=device)
    assert triton_kernels._loaded["draw_filtered"](logits, none, make_draws([(3, 1.0, 0.0)], device)) is NotImplemented
    assert_as_before(logits, [(3, 1.0, 0.0)])


def test_no_rows(device: str) -> None:
    none = torch.empty(0, dtype=torch.int64, device=device)
    floats = torch.empty(0, device=device)
    assert (
        len(draw_filtered(torch.zeros(2, 9, device=device), none, RowDraws(floats, none, none, none, floats, floats)))
        == 0
    )
