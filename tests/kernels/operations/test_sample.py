import pytest
import torch

from kernels.operations.sample import draw, greedy, sample, sample_reference
from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case

scipy = pytest.importorskip("scipy")  # whose parts, which take long, are imported when first named


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_best(dtype: torch.dtype, device: str) -> None:
    logits = torch.zeros(3, 1001, dtype=dtype, device=device)
    logits[0, [700, 1000]] = 2.0
    logits[1, :] = -3.0
    logits[2, 1000] = 0.5
    assert greedy(logits).tolist() == [700, 0, 1000]


@each_case("vocab_size", [1, 4095, 4096, 4097, 50257])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_greedy_of_vocabularies_of_any_size(dtype: torch.dtype, vocab_size: int) -> None:
    torch.manual_seed(vocab_size)
    logits = torch.randn(7, vocab_size).to(dtype)
    for row in range(7):  # equals far apart
        logits[row, [vocab_size * row // 7, vocab_size - 1]] = 9.0
    assert greedy(logits).tolist() == [vocab_size * row // 7 for row in range(7)]


@pytest.mark.parametrize("device", DEVICES)
@each_case("bad", [float("nan"), float("inf"), float("-inf")])
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
    assert scipy.stats.chisquare(counts[:4].numpy(), expected.numpy() * num_draws / expected.sum().item()).pvalue > 0.01


def test_the_only_token_left_is_drawn_whatever_its_noise() -> None:
    scores = torch.full((5000, 3), float("-inf"))
    scores[:, 1] = -80.0
    assert bool((sample(scores, torch.arange(5000), torch.zeros(5000, dtype=torch.int64)) == 1).all())


@pytest.mark.parametrize("device", DEVICES)
@each_case("vocab_size", [1, 7, 2047, 2048, 2049, 50257])
def test_draws_what_its_reference_draws(vocab_size: int, device: str) -> None:
    """Logarithms may differ in the last bit, and then a near tie may go either way: none of these is so near."""
    generator = torch.Generator().manual_seed(vocab_size)
    scores = (torch.randn(40, vocab_size, generator=generator) * 2).to(device)
    scores[::3, ::2] = float("-inf")
    scores[:, 0] = -3.0
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (40,), generator=generator).to(device)
    positions = torch.arange(40, device=device) * 100
    expected = sample_reference(scores.clone(), seeds, positions)
    assert sample(scores, seeds, positions).tolist() == expected.tolist()


def test_no_rows_draw_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert sample(torch.empty(0, 10), none, none).shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draw_is_greedy_or_a_sample(dtype: torch.dtype, device: str) -> None:
    logits = (torch.randn(5, 1001, generator=torch.Generator().manual_seed(3)) * 2).to(device, dtype)
    logits[4, 17] = float("nan")
    temperatures = torch.tensor([0.0, 0.7, 2.0, 1e-5, 1.0], device=device)
    seeds, positions = torch.arange(5, device=device) - 2, torch.arange(5, device=device) * 9
    drawn = sample(logits[1:4].float() / temperatures[1:4, None], seeds[1:4], positions[1:4])
    tokens = draw(logits, temperatures, seeds, positions)
    assert tokens.tolist() == [*greedy(logits[:1]).tolist(), *drawn.tolist(), -1]
    assert int(tokens[3]) == int(greedy(logits)[3])


def test_draw_of_greedy_rows_alone() -> None:
    logits, seeds = torch.randn(3, 50), torch.zeros(3, dtype=torch.int64)
    assert draw(logits, torch.zeros(3), seeds, seeds).tolist() == greedy(logits).tolist()
