from collections import Counter

import pytest
import torch

from kernels.operations.top_logprobs import top_logprobs, top_logprobs_reference

# Triton's interpreter turns the end of a loop from an array into an integer.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("num_top", "vocab_size", "dtype"),
    [
        (num_top, vocab_size, (torch.float32, torch.bfloat16, torch.float16)[(place + index) % 3])
        for place, num_top in enumerate((0, 1, 20))
        for index, vocab_size in enumerate((20, 300, 9_001))
    ],
)
def test_equals_its_reference(
    num_top: int, vocab_size: int, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    logits = (torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(1)) * 4).to(device, dtype)
    ids = torch.tensor([0, -1, vocab_size - 1], dtype=torch.int32, device=device)
    chosen, top_ids, top = top_logprobs(logits, ids, num_top)
    expected_chosen, expected_ids, expected_top = top_logprobs_reference(logits, ids, num_top)
    assert (chosen.dtype, top_ids.dtype, top.dtype) == (torch.float32, torch.int32, torch.float32)
    torch.testing.assert_close(chosen, expected_chosen, rtol=0, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(top, expected_top, rtol=0, atol=1e-5)
    assert top_ids.tolist() == expected_ids.tolist()
    assert backend["top_logprobs"] == 1


def test_of_equal_tokens_the_smaller_ids_come_first(device: str) -> None:
    """In every part of the row; some tokens are banned, and of fewer others than wanted the banned come last."""
    logits = torch.zeros(2, 9_000, device=device)
    logits[0, [8_999, 4_500, 3]] = 1.0
    logits[1] = -INF
    logits[1, [8_000, 1]] = 2.0
    _, top_ids, top = top_logprobs(logits, torch.zeros(2, dtype=torch.int64, device=device), 6)
    assert top_ids.tolist() == [[3, 4_500, 8_999, 0, 1, 2], [1, 8_000, 0, 2, 3, 4]]
    assert top[1, 2:].tolist() == [-INF] * 4


def test_a_whole_vocabulary_and_more_than_are_searched_for_one_by_one(device: str) -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(4)).to(device)
    ids = torch.tensor([5], device=device)
    for num_top, row in ((1, logits[:, :1]), (64, logits), (200, logits)):
        expected = top_logprobs_reference(row, ids.clamp(max=row.shape[1] - 1), num_top)
        actual = top_logprobs(row, ids.clamp(max=row.shape[1] - 1), num_top)
        assert actual[1].tolist() == expected[1].tolist()
        torch.testing.assert_close(actual[2], expected[2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_row_that_is_not_finite_leaves_the_others_alone(bad: float, device: str) -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(5)).to(device)
    ids = torch.tensor([4, 5, 6], device=device)
    before = [column.tolist() for column in top_logprobs(logits, ids, 20)]
    logits[1, 100] = bad
    after = [column.tolist() for column in top_logprobs(logits, ids, 20)]
    assert after[0][1] != after[0][1]
    assert all(0 <= token < 200 for token in after[1][1])
    assert [[column[0], column[2]] for column in after] == [[column[0], column[2]] for column in before]


def test_a_sure_token_has_no_positive_logprob(device: str) -> None:
    logits = torch.full((1, 50_000), -30.0, device=device)
    logits[0, 8] = 101.3
    chosen, _, top = top_logprobs(logits, torch.tensor([8], device=device), 5)
    assert chosen.tolist() == [0.0]
    assert float(top.max()) == 0.0


def test_no_rows(device: str) -> None:
    none = torch.empty(0, dtype=torch.int32, device=device)
    chosen, top_ids, top = top_logprobs(torch.empty(0, 100, device=device), none, 5)
    assert (chosen.shape, top_ids.shape, top.shape) == ((0,), (0, 5), (0, 5))
