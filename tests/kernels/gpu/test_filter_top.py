"""The kept tokens, compared with the reference; a nucleus may differ only if its mass is top-p itself."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from kernels.operations.filter_scores import filter_top, filter_top_reference

INF, NAN = float("inf"), float("nan")
ROUNDING = 2e-6
"""The rounding of a sum of probabilities in float32."""


def run(scores_SV: Tensor, rows: list[tuple[int, float]]) -> Tensor:
    top_ks = torch.tensor([top_k for top_k, _ in rows], device=scores_SV.device)
    top_ps = torch.tensor([top_p for _, top_p in rows], device=scores_SV.device)
    out_SV = scores_SV.clone()
    filter_top(out_SV, top_ks, top_ps)
    expected_SV = scores_SV.clone()
    filter_top_reference(expected_SV, top_ks, top_ps)
    for out_V, expected_V, scores_V, (top_k, top_p) in zip(out_SV, expected_SV, scores_SV, rows, strict=True):
        assert_kept(out_V, expected_V, scores_V, top_k, top_p)
    return out_SV


def assert_kept(out_V: Tensor, expected_V: Tensor, scores_V: Tensor, top_k: int, top_p: float) -> None:
    """Tokens kept by one alone are equals between which the nucleus ends, to within the rounding of a sum."""
    is_kept_V = out_V > -INF
    assert torch.equal(out_V[is_kept_V], scores_V[is_kept_V])
    differs_V = is_kept_V != (expected_V > -INF)
    if not differs_V.any():
        return
    best = scores_V.double().sort(descending=True).values[: min(top_k, len(scores_V))]
    probs = (best - best.logsumexp(-1)).exp()
    for score in scores_V[differs_V].double().unique():
        assert abs(float(probs[best > score].sum()) - top_p) < ROUNDING


# (top-k, top-p, spread of the scores)
ROWS = [(1, 1.0, 3.0), (50, 1.0, 3.0), (50, 0.5, 3.0), (3000, 0.9, 0.1), (20, 0.999, 1.0)]
NUCLEI = [(1 << 30, 0.9, 3.0), (1 << 30, 0.99, 0.01), (1 << 30, 1e-6, 3.0), (9_010, 0.3, 1.0), (1 << 30, 1.0, 1.0)]


@pytest.mark.parametrize("rows", [ROWS, NUCLEI], ids=["top-k", "nuclei"])
def test_keeps_what_its_reference_keeps(
    rows: list[tuple[int, float, float]], device: str, backend: Counter[str]
) -> None:
    generator = torch.Generator().manual_seed(len(rows))
    scores = torch.stack([torch.randn(9_001, generator=generator) * spread for *_, spread in rows]).to(device)
    run(scores, [(top_k, top_p) for top_k, top_p, _ in rows])
    assert backend["filter_top"] == 1


@pytest.mark.parametrize("vocab_size", [1, 2, 129, 70_003])
def test_vocabularies_of_any_size(vocab_size: int, device: str) -> None:
    scores = (torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 2).to(device)
    run(scores, [(40, 0.95), (1 << 30, 0.8)])


def test_scores_of_bfloat16_logits_have_many_equals(device: str) -> None:
    logits = (torch.randn(3, 2_000, generator=torch.Generator().manual_seed(5)) * 2).to(torch.bfloat16)
    out = run((logits.float() / 0.7).to(device), [(700, 1.0), (1 << 30, 0.7), (700, 0.7)])
    assert int((out[0] > -INF).sum()) > 700


def test_tokens_equal_to_the_last_one_kept_stay(device: str) -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 3, device=device)
    kept = run(scores, [(2, 1.0), (1, 1.0), (3, 0.6)]).isfinite().tolist()
    assert kept == [[True] * 4, [False, True, False, False], [True] * 4]


def test_best_tokens_that_share_a_lane_are_all_found(device: str) -> None:
    """The rows' maxima over tokens 8,192 apart show only one of these, and then the bound is a loose one."""
    scores = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(6)).to(device)
    scores[:, 5::8192] = torch.tensor([20.0, 21.0, 22.0, 23.0, 24.0], device=device)
    kept = run(scores, [(4, 1.0), (1 << 30, 0.95)]) > -INF
    assert kept[0].nonzero()[:, 0].tolist() == [5 + 8192 * part for part in (1, 2, 3, 4)]
    assert kept[1].nonzero()[:, 0].tolist() == [5 + 8192 * part for part in (2, 3, 4)]


def test_lanes_that_do_not_hold_enough_bound_nothing(device: str) -> None:
    """10 of 20 tokens in 4 lanes are kept, though only 4 are a lane's best; most of the mass is below these."""
    generator = torch.Generator().manual_seed(9)
    scores = torch.randn(3, 40_000, generator=generator).to(device)
    is_in = torch.arange(40_000, device=device) % 8192 < 4
    scores[:2, ~is_in] = -INF
    kept = run(scores, [(10, 1.0), (1 << 30, 0.95), (1 << 30, 0.9)]) > -INF
    assert int(kept[0].sum()) == 10


def test_tokens_that_are_out_already(device: str) -> None:
    scores = torch.full((4, 300), -INF, device=device)
    scores[:, 7], scores[:, [200, 250]] = -3.0, 2.0
    scores[3] = -INF
    kept = run(scores, [(2, 1.0), (10, 1.0), (10, 0.5), (10, 0.5)]) > -INF
    assert [row.nonzero()[:, 0].tolist() for row in kept] == [[200, 250], [7, 200, 250], [200, 250], []]


def test_scores_of_extreme_temperatures(device: str) -> None:
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(7))
    run((logits / 1e-5).to(device), [(50, 0.9), (1 << 30, 0.9)])
    run((logits / 1e6).to(device), [(50, 0.9), (1 << 30, 0.9)])


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_row_that_is_not_finite_leaves_the_others_alone(bad: float, device: str) -> None:
    scores = torch.randn(2, 300, generator=torch.Generator().manual_seed(8)).to(device)
    scores[0, 5] = bad
    filter_top(scores, torch.tensor([10, 10], device=device), torch.tensor([0.9, 1.0], device=device))
    assert int(scores[1].isfinite().sum()) == 10


def test_no_rows(device: str) -> None:
    none = torch.empty(0, device=device)
    filter_top(torch.empty(0, 10, device=device), none.long(), none)
