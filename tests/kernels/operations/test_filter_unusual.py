import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.operations.filter_unusual import filter_top_n_sigma, filter_typical_p, filter_xtc
from kernels.operations.noise import row_noise
from tests.kernels.cases import DEVICES

NUM_ROWS, VOCAB_SIZE = 6, 500


def make_scores(device: str) -> Tensor:
    """Rows with sharp and flat distributions; of one only 100 tokens are in."""
    scores = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    scores *= torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0, 2.0])[:, None]
    scores[5, 100:] = float("-inf")
    return scores.to(device)


def places(scores_V: Tensor) -> list[int]:
    """Returns the tokens that are in."""
    return scores_V.isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_top_n_sigma_keeps_what_is_within_so_many_deviations_of_the_best(device: str) -> None:
    scores, widths = make_scores(device), [0.5, 1.0, 1.5, 2.0, 0.0, 1.0]
    filtered = scores.clone()
    filter_top_n_sigma(filtered, torch.tensor(widths, device=device))
    for row, kept, width in zip(scores.cpu().double().numpy(), filtered, widths, strict=True):
        lowest = row.max() - width * row[np.isfinite(row)].std()
        assert places(kept) == np.flatnonzero(row >= lowest - 1e-6).tolist()
    assert len(places(filtered[4])) == 1
    hotter = scores / 3
    filter_top_n_sigma(hotter, torch.tensor(widths, device=device))
    assert [len(places(row)) for row in hotter] == [len(places(row)) for row in filtered]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("typical_p", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_typical_p_keeps_the_tokens_that_transformers_keeps(typical_p: float, device: str) -> None:
    transformers = pytest.importorskip("transformers")
    scores = make_scores(device)
    expected = transformers.TypicalLogitsWarper(typical_p)(None, scores.clone())
    filter_typical_p(scores, torch.full((NUM_ROWS,), typical_p, device=device))
    assert torch.equal(scores, expected)
    assert all(map(places, scores))


@pytest.mark.parametrize("device", DEVICES)
def test_xtc_leaves_the_least_likely_of_the_top_choices(device: str) -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]]).log().to(device)
    ones, zeros = torch.ones(3, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    filter_xtc(scores, ones, 0.15 * ones, zeros, zeros)
    assert [places(row) for row in scores] == [[2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9])
def test_xtc_is_a_matter_of_chance(probability: float, device: str) -> None:
    num_rows = 4000
    counter, constant = torch.arange(num_rows, device=device), torch.full((num_rows,), 7, device=device)
    for seeds, positions in ((counter, constant), (constant, counter)):
        scores = torch.tensor([0.6, 0.4], device=device).log().repeat(num_rows, 1)
        filter_xtc(
            scores, torch.full((num_rows,), probability, device=device), 0.1 + 0 * scores[:, 0], seeds, positions
        )
        share = float(scores[:, 0].isinf().float().mean())
        assert abs(share - probability) < 4 * (0.25 / num_rows) ** 0.5
        assert scores[:, 1].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_noise_of_a_row_is_uniform(device: str) -> None:
    noise = row_noise(torch.arange(20_000, device=device), torch.full((20_000,), 3, device=device))
    counts = torch.histc(noise.cpu(), 10, 0, 1)
    assert float((counts - 2000).abs().max()) < 5 * 2000**0.5


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    alone, together = make_scores(device)[:1], make_scores(device)[:2]
    together[1, 5] = float("nan")
    for scores in (alone, together):
        ones = torch.ones(len(scores), device=device)
        filter_top_n_sigma(scores, 2 * ones)
        filter_typical_p(scores, 0.7 * ones)
        filter_xtc(scores, ones, 0.001 * ones, ones.long(), ones.long())
    assert torch.equal(alone[0], together[0])
    assert 0 < len(places(alone[0])) < VOCAB_SIZE
