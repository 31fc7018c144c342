import pytest
import torch
from scipy import stats

from kernels.sample import greedy, sample
from tests.kernels.cases import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_best(dtype: torch.dtype, device: str) -> None:
    logits = torch.zeros(3, 1001, dtype=dtype, device=device)
    logits[0, [700, 1000]] = 2.0
    logits[1, :] = -3.0
    logits[2, 1000] = 0.5
    assert greedy(logits).tolist() == [700, 0, 1000]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_greedy_refuses_only_the_row_that_is_not_finite(bad: float, device: str) -> None:
    logits = torch.randn(3, 50, device=device)
    logits[1, 17] = bad
    best = logits.argmax(-1).tolist()
    assert greedy(logits).tolist() == [best[0], -1, best[2]]


def test_greedy_of_no_rows() -> None:
    assert greedy(torch.empty(0, 10)).shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
def test_draws_follow_the_softmax(device: str) -> None:
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0, float("-inf")], device=device)
    num_draws = 20_000
    seeds = torch.full((num_draws,), 3, device=device)
    tokens = sample(scores.repeat(num_draws, 1), seeds, torch.arange(num_draws, device=device)).cpu()
    counts = torch.bincount(tokens, minlength=5)
    assert counts[4] == 0
    expected = scores.softmax(-1)[:4].cpu().double() * num_draws
    assert stats.chisquare(counts[:4].numpy(), expected.numpy() * num_draws / expected.sum().item()).pvalue > 0.01


def test_the_only_token_left_is_drawn_whatever_its_noise() -> None:
    scores = torch.full((5000, 3), float("-inf"))
    scores[:, 1] = -80.0
    assert bool((sample(scores, torch.arange(5000), torch.zeros(5000, dtype=torch.int64)) == 1).all())
