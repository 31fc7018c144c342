from collections import Counter

import pytest
import torch

from kernels.operations.apply_bitmask import apply_bitmask, apply_bitmask_reference
from tests.kernels.bitmask_cases import make_bitmask


@pytest.mark.parametrize("vocab_size", [1, 33, 5_003])
def test_equals_its_reference(vocab_size: int, device: str, backend: Counter[str]) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=generator).to(device)
    bitmask = make_bitmask(torch.rand(2, vocab_size, generator=generator) < 0.5).to(device)
    rows = torch.tensor([3, 1], device=device)
    expected = logits.clone()
    apply_bitmask_reference(expected, rows, bitmask)
    apply_bitmask(logits, rows, bitmask)
    assert torch.equal(logits, expected)
    assert backend["apply_bitmask"] == 1
