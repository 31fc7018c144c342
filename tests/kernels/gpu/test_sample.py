"""`sample` and `draw`: the same draws as on the CPU, and the right distribution."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import find_kernel, unload_kernels, use_library
from kernels.gpu import triton_kernels
from kernels.operations.noise import exponential_noise
from kernels.operations.sample import draw, greedy_reference, sample, sample_reference
from tests.kernels.c_library import built_library

scipy = pytest.importorskip("scipy")  # whose parts, which take long, are imported when first named
triton = pytest.importorskip("triton")
tl = triton.language
noise = pytest.importorskip("kernels.gpu.noise")
exponential, logarithm, row_key = noise.exponential_noise, noise.logarithm, noise.row_key

INF, NAN = float("inf"), float("nan")


def make_seeds(num: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num)
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (num,), generator=generator)
    return seeds.to(device), (torch.arange(num) * 1000).to(device)


@pytest.mark.parametrize("vocab_size", [1, 7, 128, 4097, 20_001])
def test_draws_what_its_reference_draws(vocab_size: int, device: str, backend: Counter[str]) -> None:
    """Logarithms may differ in the last bit, and then a near tie may go either way: none of these is so near."""
    scores = (torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 2).to(device)
    scores[::3, ::2] = -INF
    scores[:, 0] = -3.0
    seeds, positions = make_seeds(6, device)
    expected = sample_reference(scores.clone(), seeds, positions)
    assert sample(scores, seeds, positions).tolist() == expected.tolist()
    assert backend["sample"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 301, 5_000])
def test_draw_is_greedy_or_a_sample(vocab_size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    logits = (torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1)) * 3).to(device, dtype)
    temperatures = torch.tensor([0.0, 1.0, 0.6, 1e-5, 100.0, 0.0], device=device)
    seeds, positions = make_seeds(6, device)
    expected = greedy_reference(logits)
    warm = [1, 2, 3, 4]
    scores = logits[warm].float() / temperatures[warm, None]
    expected[warm] = sample_reference(scores, seeds[warm], positions[warm])
    tokens = draw(logits, temperatures, seeds, positions)
    assert tokens.tolist() == expected.tolist()
    assert int(tokens[3]) == int(logits[3].argmax())
    assert backend["draw"] == 1


@triton.jit
def every_value_kernel(
    logits_ptr, temperatures_ptr, seeds_ptr, positions_ptr, values_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Each token's score with its noise, none left out and none estimated."""
    row = tl.program_id(0)
    key = row_key(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
    temperature = tl.load(temperatures_ptr + row)
    for start in range(0, VOCAB, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * VOCAB + tokens, mask=tokens < VOCAB, other=0.0).to(tl.float32)
        values = tl.math.div_rn(x, temperature) - logarithm(exponential(key, tokens))
        tl.store(values_ptr + row * VOCAB + tokens, values, mask=tokens < VOCAB)


def first_of_all(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> list[int]:
    """Returns the tokens by values that are all computed."""
    values = torch.empty(logits.shape, device=logits.device)
    every_value_kernel[(len(logits),)](
        logits, temperatures, seeds, positions, values, VOCAB=logits.shape[1], BLOCK=4096
    )
    return [int((row == row.max()).nonzero()[0]) for row in values.cpu()]


def ties(num_rows: int, vocab_size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 3, (num_rows, vocab_size), generator=generator).float()


LOGITS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "spread": lambda rows, vocab, generator: torch.randn(rows, vocab, generator=generator) * 3,
    "flat": lambda rows, vocab, generator: torch.zeros(rows, vocab),
    "ties": ties,
    "peaked": lambda rows, vocab, generator: torch.randn(rows, vocab, generator=generator) ** 7,
    "far from 0": lambda rows, vocab, generator: ties(rows, vocab, generator) * 1e-3 - 9_000.0,
    "huge": lambda rows, vocab, generator: ties(rows, vocab, generator) * 1.5e38,
}


@pytest.mark.parametrize(("kind", "vocab_size"), [*((kind, 4_200) for kind in LOGITS), ("ties", 3), ("huge", 3)])
def test_draws_what_all_values_give_bit_for_bit(kind: str, vocab_size: int, device: str) -> None:
    """Takes the first of tokens with equal values, wherever the rounding of scores hides the noise."""
    temperatures = torch.tensor([1.0, 0.6, 1e-5, 1e3, 1e-38], device=device)
    logits = LOGITS[kind](5, vocab_size, torch.Generator().manual_seed(vocab_size)).to(device)
    seeds, positions = make_seeds(5, device)
    expected = first_of_all(logits, temperatures, seeds, positions)
    assert draw(logits, temperatures, seeds, positions).tolist() == expected
    scores = (logits / temperatures[:, None])[:2]
    scores[1::2, 1::3] = -INF
    expected = first_of_all(scores, torch.ones(2, device=device), seeds[:2], positions[:2])
    assert sample(scores, seeds[:2], positions[:2]).tolist() == expected


def test_the_token_with_the_largest_bound_is_not_always_the_one(device: str) -> None:
    """Uses the seeds, out of many, for which another token wins."""
    scores = torch.randn(128, generator=torch.Generator().manual_seed(6))
    seeds, positions = make_seeds(4_000, "cpu")
    values = exponential_noise(seeds, positions, 128)
    uniform = -torch.expm1(-values)
    exponent = uniform.log2().floor()
    bounds = scores - 0.6931472 * (exponent + uniform / exponent.exp2() - 1)
    tokens = (scores - values.log()).argmax(-1)
    rows = (bounds.argmax(-1) != tokens).nonzero()[:4, 0]
    assert len(rows) == 4
    drawn = sample(scores.repeat(4, 1).to(device), seeds[rows].to(device), positions[rows].to(device))
    assert drawn.tolist() == tokens[rows].tolist()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_draw_refuses_only_the_rows_that_are_not_finite(bad: float, device: str) -> None:
    logits = torch.randn(4, 5_000, generator=torch.Generator().manual_seed(2)).to(device)
    temperatures = torch.tensor([0.0, 0.7, 0.7, 0.7], device=device)
    seeds, positions = make_seeds(4, device)
    target = draw(logits, temperatures, seeds, positions).tolist()
    logits[0, 4_999] = bad
    logits[2, 3] = bad
    assert draw(logits, temperatures, seeds, positions).tolist() == [-1, target[1], -1, target[3]]


def test_a_row_draws_the_same_alone_and_in_any_batch(device: str) -> None:
    logits = torch.randn(4, 5_000, generator=torch.Generator().manual_seed(4)).to(device)
    temperatures = torch.tensor([0.7, 1.0, 0.0, 2.0], device=device)
    seeds, positions = make_seeds(4, device)
    together = draw(logits, temperatures, seeds, positions).tolist()
    order = torch.tensor([2, 0, 3], device=device)
    shuffled = draw(logits[order], temperatures[order], seeds[order], positions[order])
    assert shuffled.tolist() == [together[2], together[0], together[3]]


def test_the_only_token_left_is_drawn_whatever_its_noise(device: str) -> None:
    scores = torch.full((5, 3), -INF, device=device)
    scores[:, 1] = -80.0
    assert sample(scores, *make_seeds(5, device)).tolist() == [1] * 5


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_a_row_without_a_number_has_some_token(device: str) -> None:
    scores = torch.full((1, 5_000), NAN, device=device)
    assert 0 <= int(sample(scores, *make_seeds(1, device))) < 5_000


def test_draws_follow_the_softmax(device: str) -> None:
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0, -INF], device=device)
    num_draws = 20_000 if device == "cuda" else 100
    seeds = torch.full((num_draws,), 3, device=device)
    tokens = sample(scores.repeat(num_draws, 1), seeds, torch.arange(num_draws, device=device)).cpu()
    counts = torch.bincount(tokens, minlength=5)
    assert counts[4] == 0
    expected = scores.softmax(-1)[:4].cpu().double() * num_draws
    assert scipy.stats.chisquare(counts[:4].numpy(), expected.numpy() * num_draws / expected.sum().item()).pvalue > 0.01


@pytest.fixture
def c_sample(device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The C kernel of `sample`, without the Triton kernel before it."""
    path = built_library()

    def call(scores: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
        triton_kernel = triton_kernels._loaded.pop("sample")
        use_library(path, "portable")
        try:
            assert find_kernel("sample", scores.dtype) is not None
            return sample(scores.cpu(), seeds.cpu(), positions.cpu())
        finally:
            unload_kernels()
            triton_kernels._loaded["sample"] = triton_kernel

    return call


def test_draws_what_the_c_kernel_draws(c_sample: Callable[[Tensor, Tensor, Tensor], Tensor], device: str) -> None:
    """With equal scores the draw is the token with the smallest noise: the noise alone decides."""
    for vocab_size in (5, 4_097):
        scores = torch.zeros(8, vocab_size, device=device)
        seeds, positions = make_seeds(8, device)
        drawn = sample(scores, seeds, positions).tolist()
        assert drawn == c_sample(scores, seeds, positions).tolist()
        assert drawn == exponential_noise(seeds, positions, vocab_size).argmin(-1).tolist()
