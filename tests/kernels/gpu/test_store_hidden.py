from collections import Counter

import pytest
import torch

from kernels.operations.hidden_states import store_hidden, store_hidden_reference


@pytest.mark.parametrize("size", [3, 1024, 1500])
def test_states_are_kept_in_their_slots(size: int, device: str, backend: Counter[str]) -> None:
    hidden, kept = torch.randn(4, size).to(device), torch.randn(6, size).to(device)
    slots, expected = torch.tensor([5, -1, 0, 2], device=device), kept.clone()
    store_hidden_reference(hidden, slots, expected)
    store_hidden(hidden, slots, kept)
    store_hidden(hidden[:0], slots[:0], kept)
    assert torch.equal(kept, expected)
    assert backend["store_hidden"] == 2
