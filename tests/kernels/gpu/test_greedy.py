from collections import Counter

import pytest
import torch

from kernels.operations.sample import greedy, greedy_reference

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 7, 128, 4096, 4097, 50257])
def test_equals_its_reference(vocab_size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(vocab_size)).to(device, dtype)
    assert greedy(logits).tolist() == greedy_reference(logits).tolist()
    assert backend["greedy"] == 1


def test_takes_the_first_of_equals_in_a_part_and_across_parts(device: str) -> None:
    logits = torch.zeros(4, 70_001, device=device)
    logits[0, [100, 5_000, 70_000]] = 2.0
    logits[1, 70_000] = 0.5
    logits[2, [40_000, 40_001]] = 3e38
    assert greedy(logits).tolist() == [100, 70_000, 40_000, 0]


@pytest.mark.parametrize("vocab_size", [50, 9_000])
@pytest.mark.parametrize("place", ["first", "last"])
def test_refuses_only_the_rows_that_are_not_finite(place: str, vocab_size: int, device: str) -> None:
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(0)).to(device)
    best = logits.argmax(-1).tolist()
    token = 0 if place == "first" else vocab_size - 1
    logits[1, token], logits[2, token], logits[3, token] = NAN, INF, -INF
    assert greedy(logits).tolist() == [best[0], -1, -1, -1, best[4]]


def test_a_row_of_nothing_but_one_token_is_not_finite(device: str) -> None:
    logits = torch.full((1, 300), -INF, device=device)
    logits[0, 17] = 1.0
    assert greedy(logits).tolist() == [-1]


def test_reads_rows_where_they_are(device: str) -> None:
    logits = torch.randn(6, 301, generator=torch.Generator().manual_seed(3)).to(device)
    assert greedy(logits[::2]).tolist() == greedy(logits[::2].contiguous()).tolist()
    assert greedy(logits[:1].expand(2, -1)).tolist() == greedy(logits[[0, 0]]).tolist()


def test_no_rows(device: str) -> None:
    assert greedy(torch.empty(0, 10, device=device)).shape == (0,)
