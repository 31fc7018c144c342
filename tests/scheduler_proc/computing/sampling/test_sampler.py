"""Sampling against transformers: its logits warpers give the probabilities that the draws must follow."""

import msgspec
import numpy as np
import pytest
import scipy
import torch
import transformers
from torch import Tensor

from messages.ring.requests import SamplingParams
from tests.scheduler_proc.computing.sampling.sampling_batch import choose, make_batch

VOCAB_SIZE = 300
NUM_DRAWS = 4000


def with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return msgspec.structs.replace(params, seed=seed)


def make_logits(dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 2).to(dtype)


def warped_probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(transformers.MinPLogitsWarper(params.min_p))
    if params.typical_p < 1:
        warpers.append(transformers.TypicalLogitsWarper(params.typical_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits.float()).softmax(-1)[0].double()


def chi_square_p_value(tokens: Tensor, probabilities: Tensor) -> float:
    """Returns how likely chance is this far from `probabilities`; tokens expected under 5 times share a cell."""
    counts = torch.bincount(tokens.long(), minlength=VOCAB_SIZE).double().numpy()
    expected = probabilities.numpy() * len(tokens)
    assert counts[expected == 0].sum() == 0
    is_rare = expected < 5
    cells = np.append(counts[~is_rare], counts[is_rare].sum())
    target = np.append(expected[~is_rare], expected[is_rare].sum())
    possible = target > 0
    if possible.sum() == 1:
        return 1.0
    return scipy.stats.chisquare(cells[possible], target[possible] * len(tokens) / target[possible].sum()).pvalue


@pytest.mark.parametrize("varied", ["seeds", "positions"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1, temperature=1.0),
        SamplingParams(1, temperature=0.5),
        SamplingParams(1, temperature=2.0),
        SamplingParams(1, top_k=1),
        SamplingParams(1, top_k=40),
        SamplingParams(1, top_p=0.8),
        SamplingParams(1, min_p=0.05),
        SamplingParams(1, temperature=1.4, top_k=60, top_p=0.9, min_p=0.02),
        SamplingParams(1, temperature=0.8, top_k=100, typical_p=0.6),
    ],
    ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}-y{p.typical_p}",
)
def test_draws_follow_the_probabilities_of_transformers(
    params: SamplingParams, dtype: torch.dtype, varied: str
) -> None:
    logits = make_logits(dtype)
    counter, constant = list(range(NUM_DRAWS)), [12345] * NUM_DRAWS
    seeds, positions = (counter, constant) if varied == "seeds" else (constant, counter)
    batch = make_batch([with_seed(params, seed) for seed in seeds], positions)
    tokens = choose(logits.expand(NUM_DRAWS, -1), batch)
    assert tokens.dtype == torch.int32
    assert chi_square_p_value(tokens, warped_probabilities(logits, params)) > 1e-3


@pytest.mark.parametrize("varied", ["seeds", "positions"])
def test_chi_square_over_many_ranges_is_as_uniform_as_chance(varied: str) -> None:
    """One range may be unlucky; 40 of them distinguish a bias from bad luck."""
    logits, params = make_logits(), SamplingParams(1)
    probabilities = warped_probabilities(logits, params)
    p_values = []
    for index in range(40):
        counter, constant = list(range(2000 * index, 2000 * (index + 1))), [index] * 2000
        seeds, positions = (counter, constant) if varied == "seeds" else (constant, counter)
        batch = make_batch([with_seed(params, seed) for seed in seeds], positions)
        p_values.append(chi_square_p_value(choose(logits.expand(2000, -1), batch), probabilities))
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("step", ["seed", "position"])
def test_neighbouring_draws_are_independent(step: str) -> None:
    """Pairs of draws of neighbouring seeds or positions: knowing one does not help to guess the other."""
    logits = torch.tensor([[0.3, 0.0, -0.4, 0.5]]).expand(NUM_DRAWS, -1)
    counter, constant = list(range(NUM_DRAWS)), [77] * NUM_DRAWS
    seeds, positions = (counter, constant) if step == "seed" else (constant, counter)
    tokens = choose(logits, make_batch([with_seed(SamplingParams(1), seed) for seed in seeds], positions))
    table = torch.bincount((tokens[::2] * 4 + tokens[1::2]).long(), minlength=16).view(4, 4)
    assert scipy.stats.chi2_contingency(table.numpy()).pvalue > 0.01


def mixed_params() -> list[SamplingParams]:
    return [
        SamplingParams(1, temperature=0.0),
        SamplingParams(1, temperature=0.7, seed=1),
        SamplingParams(1, top_k=5, seed=2),
        SamplingParams(1, temperature=1e-6, seed=3),
        SamplingParams(1, top_p=0.5, seed=-4),
        SamplingParams(1, min_p=0.3, seed=5),
        SamplingParams(1, top_k=100_000, top_p=0.9, min_p=0.01, seed=6),
    ]


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    params = mixed_params()
    logits = torch.randn(len(params), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    positions = [3 + 10 * row for row in range(len(params))]
    together = choose(logits, make_batch(params, positions))
    order = [4, 2, 6, 0, 5, 1, 3]
    shuffled = choose(logits[order], make_batch([params[i] for i in order], [positions[i] for i in order]))
    assert torch.equal(shuffled, together[order])
    for row in range(len(params)):
        alone = choose(logits[row : row + 1], make_batch([params[row]], [positions[row]]))
        assert int(alone) == int(together[row])
    assert int(together[0]) == int(logits[0].argmax())
    assert int(together[3]) == int(logits[3].argmax())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("bad_row", range(7))
def test_a_row_that_is_not_finite_has_no_token_and_the_others_keep_theirs(bad: float, bad_row: int) -> None:
    params = mixed_params()
    logits = torch.randn(len(params), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    batch = make_batch(params, [9] * len(params))
    target = choose(logits, batch).tolist()
    logits[bad_row, 11] = bad
    target[bad_row] = -1
    assert choose(logits, batch).tolist() == target


def test_a_token_far_less_likely_than_a_float32_step_below_one_is_still_drawn() -> None:
    """1,000 tokens of 2e-6 each: noise of 24 bits would give them a wrong share."""
    logits = torch.zeros(1, 1001)
    logits[0, 0] = float(np.log(0.998 / 2e-6))
    num_draws = 20_000
    batch = make_batch([with_seed(SamplingParams(1), seed) for seed in range(num_draws)], [1] * num_draws)
    num_rare = int((choose(logits.expand(num_draws, -1), batch) > 0).sum())
    assert scipy.stats.binomtest(num_rare, num_draws, 0.002).pvalue > 0.01
