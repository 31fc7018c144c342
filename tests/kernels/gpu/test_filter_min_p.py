from collections import Counter

import pytest
import torch

from kernels.operations.filter_scores import filter_min_p, filter_min_p_reference


@pytest.mark.parametrize("vocab_size", [1, 129, 20_001])
def test_equals_its_reference(vocab_size: int, device: str, backend: Counter[str]) -> None:
    scores = (torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 2).to(device)
    scores[2, 1:] = float("-inf")
    min_ps = torch.tensor([0.0, 0.001, 0.1, 1.0], device=device)
    expected = scores.clone()
    filter_min_p_reference(expected, min_ps)
    filter_min_p(scores, min_ps)
    assert torch.equal(scores, expected)
    assert backend["filter_min_p"] == 1


def test_one_keeps_the_equals_of_the_best(device: str) -> None:
    scores = torch.tensor([[3.0, 1.0, 3.0]], device=device)
    filter_min_p(scores, torch.ones(1, device=device))
    assert scores.isfinite().tolist() == [[True, False, True]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_leaves_the_others_alone(bad: float, device: str) -> None:
    scores = torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).to(device)
    target = scores[1:].clone()
    filter_min_p(target, torch.tensor([0.1], device=device))
    scores[0, 5] = bad
    filter_min_p(scores, torch.tensor([0.1, 0.1], device=device))
    assert torch.equal(scores[1:], target)
