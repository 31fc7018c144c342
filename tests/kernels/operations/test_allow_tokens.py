import pytest
import torch

from kernels.operations.allow_tokens import allow_tokens
from tests.kernels.cases import DEVICES


@pytest.mark.parametrize("device", DEVICES)
def test_only_the_allowed_tokens_of_the_rows_concerned_stay(device: str) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    expected = torch.full_like(logits, float("-inf"))
    expected[0], expected[2] = logits[0], logits[2]
    expected[1, [99, 0]] = logits[1, [99, 0]]
    ours = logits.to(device)
    entry_rows = torch.tensor([1, 1, 1], device=device)
    allow_tokens(ours, torch.tensor([1, 3], device=device), entry_rows, torch.tensor([99, 0, 99], device=device))
    assert torch.equal(ours.cpu(), expected)
