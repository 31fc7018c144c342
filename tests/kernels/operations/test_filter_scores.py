import pytest
import torch
from torch import Tensor

from kernels.operations.filter_scores import FIRST_CANDIDATES, filter_min_p, filter_top
from kernels.operations.row_sums import SUMMED_AT_ONCE, row_sums
from tests.kernels.cases import DEVICES

transformers = pytest.importorskip("transformers")

NO_IDS = torch.zeros(1, 1, dtype=torch.long)
VOCAB_SIZE = 5000


def warp(scores_V: Tensor, top_k: int, top_p: float) -> Tensor:
    scores = scores_V[None].clone()
    if top_k < scores.shape[1]:
        scores = transformers.TopKLogitsWarper(top_k)(NO_IDS, scores)
    if top_p < 1:
        scores = transformers.TopPLogitsWarper(top_p)(NO_IDS, scores)
    return scores[0]


# (top-k, top-p, spread of the scores): nuclei within and beyond the first candidates, and all tokens equally likely.
ROWS = [
    (1, 1.0, 3.0),
    (50, 1.0, 3.0),
    (50, 0.5, 3.0),
    (FIRST_CANDIDATES + 500, 1.0, 1.0),
    (3000, 0.9, 0.1),
    (VOCAB_SIZE, 0.9, 3.0),
    (VOCAB_SIZE, 0.99, 0.01),
    (VOCAB_SIZE, 1e-6, 3.0),
    (VOCAB_SIZE + 7, 0.3, 1.0),
    (VOCAB_SIZE, 1.0, 1.0),
]


def run(rows: list[tuple[int, float, float]], scores_SV: Tensor, device: str) -> Tensor:
    scores_SV = scores_SV.to(device, copy=True)
    top_ks = torch.tensor([row[0] for row in rows], device=device)
    filter_top(scores_SV, top_ks, torch.tensor([row[1] for row in rows], device=device))
    return scores_SV.cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_keeps_the_tokens_that_transformers_keeps(device: str) -> None:
    torch.manual_seed(0)
    scores = torch.stack([torch.randn(VOCAB_SIZE) * spread for _, _, spread in ROWS])
    together = run(ROWS, scores, device)
    for index, (top_k, top_p, _) in enumerate(ROWS):
        expected = warp(scores[index], top_k, top_p)
        # Sums of thousands of float32 may leave the last token of a nucleus on either side.
        assert int((together[index].isinf() != expected.isinf()).sum()) <= (1 if top_p < 1 and top_k > 1000 else 0)
        assert torch.equal(run([ROWS[index]], scores[index : index + 1], device)[0], together[index])


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_equal_to_the_last_one_kept_stay(device: str) -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    assert run([(2, 1.0, 1.0)], scores, device).isfinite().tolist() == [[True, True, True, True]]
    assert run([(1, 1.0, 1.0)], scores, device).isfinite().tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_not_finite_leaves_the_others_alone(device: str) -> None:
    scores = torch.randn(2, 100)
    scores[0, 5] = float("nan")
    out = run([(10, 0.9, 1.0), (10, 1.0, 1.0)], scores, device)
    assert int(out[1].isfinite().sum()) == 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("min_p", [0.0, 0.001, 0.1, 1.0])
def test_min_p_keeps_the_tokens_that_transformers_keeps(min_p: float, device: str) -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 500, device=device) * 2
    scores[2, 100:] = float("-inf")
    expected = transformers.MinPLogitsWarper(min_p)(NO_IDS.to(device), scores.clone())
    filter_min_p(scores, torch.full((4,), min_p, device=device))
    assert torch.equal(scores, expected)


def test_a_row_keeps_the_same_tokens_alone_and_in_any_batch_with_any_number_of_threads() -> None:
    """A long single row is what torch gives to several threads; other rows decide how many candidates there are."""
    size = 4 * SUMMED_AT_ONCE + 5
    scores = torch.randn(len(ROWS), size, generator=torch.Generator().manual_seed(1)) * 3
    num_threads = torch.get_num_threads()
    together = run(ROWS, scores, "cpu")
    sums = row_sums(scores)
    assert torch.allclose(sums, scores.double().sum(-1, keepdim=True).float(), rtol=1e-4, atol=1e-2)
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for index, row in enumerate(ROWS):
                assert torch.equal(row_sums(scores[index : index + 1]), sums[index : index + 1])
                assert torch.equal(run([row], scores[index : index + 1], "cpu")[0], together[index])
    finally:
        torch.set_num_threads(num_threads)
