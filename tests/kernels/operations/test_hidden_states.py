import pytest
import torch

from kernels.operations.hidden_states import join_hidden, join_hidden_reference, store_hidden
from tests.kernels.cases import DEVICES, assert_close


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_kept_in_their_slots(dtype: torch.dtype, device: str) -> None:
    hidden = torch.arange(12, dtype=dtype, device=device).view(4, 3)
    kept = torch.full((5, 3), -1.0, dtype=dtype, device=device)
    store_hidden(hidden, torch.tensor([4, -1, 0, 2], device=device), kept)
    assert kept.tolist() == [[6.0, 7.0, 8.0], [-1.0] * 3, [9.0, 10.0, 11.0], [-1.0] * 3, [0.0, 1.0, 2.0]]
    store_hidden(hidden[:0], torch.empty(0, dtype=torch.int64, device=device), kept)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_are_joined_with_states(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    embedded, kept = (torch.randn(count, 40).to(dtype).to(device) for count in (3, 7))
    embedding_weight, hidden_weight = torch.randn(2, 40).to(dtype).to(device)
    weights = embedding_weight, hidden_weight
    slots = torch.tensor([6, 0, 3], device=device)
    expected = join_hidden_reference(embedded, kept, slots, weights, 1e-6)
    before = embedded.clone(), kept.clone()
    assert_close(join_hidden(embedded, kept, slots, weights, 1e-6), expected, dtype)
    assert torch.equal(embedded, before[0])
    assert torch.equal(kept, before[1])
    alone = torch.nn.functional.rms_norm(kept[3].float(), (40,), weights[1].float(), 1e-6)
    assert_close(expected[2, 40:].float(), alone, torch.bfloat16)


def test_shapes_that_do_not_fit() -> None:
    kept, slots = torch.zeros(4, 8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(AssertionError):
        store_hidden(torch.zeros(2, 6), slots, kept)
    with pytest.raises(AssertionError):
        join_hidden(torch.zeros(2, 8), kept, slots[:1], (torch.ones(8), torch.ones(8)), 1e-6)
    with pytest.raises(AssertionError):
        store_hidden(torch.zeros(2, 8), slots.int(), kept)
