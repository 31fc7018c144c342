import pytest
import torch

from kernels.operations.penalize_repetition import penalize_repetition
from tests.kernels.cases import DEVICES

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("penalty", [0.25, 1.3, 50.0])
def test_logits_are_those_of_transformers(penalty: float, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 50, generator=generator)
    logits[0, 7] = float("-inf")
    history = torch.randint(0, 50, (3, 40), generator=generator)
    history[0, :2] = 7
    expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())
    rows = torch.arange(3).repeat_interleave(40)
    ours = logits.to(device, copy=True)
    columns = rows, history.flatten().to(torch.int32), torch.full((120,), penalty)
    penalize_repetition(ours, *(column.to(device) for column in columns))
    assert torch.equal(ours.cpu(), expected)
    assert int((ours.cpu() != logits).sum()) == sum(len(set(ids)) for ids in history.tolist()) - 1


@pytest.mark.parametrize("device", DEVICES)
def test_each_row_has_its_own_penalty_and_history(device: str) -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0], [2.0, -2.0, 4.0]], device=device)
    rows, ids = torch.tensor([1, 0, 1], device=device), torch.tensor([1, 0, 2], device=device)
    penalize_repetition(logits, rows, ids, torch.tensor([2.0, 4.0, 2.0], device=device))
    assert logits.tolist() == [[0.5, -2.0, 0.0], [2.0, -4.0, 2.0]]
